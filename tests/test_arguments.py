"""What a pool says to wrong arguments, before anything is started."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from asyncpool import JobNotPicklableError, Pool

LOCK = threading.Lock()
NO_PICKLE = "cannot pickle '_thread.lock' object"


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"workers": 0}, ValueError, "workers must be at least 1, not 0"),
        ({"workers": 2.0}, TypeError, "workers must be an int, not 2.0"),
        ({"workers": "2"}, TypeError, "workers must be an int, not '2'"),
        ({"restart": 3}, TypeError, "restart must be a RestartPolicy, not 3"),
        ({"restart": {}}, TypeError, "restart must be a RestartPolicy, not {}"),
        ({"max_pending": -1}, ValueError, "max_pending must be at least 0, not -1"),
        ({"max_message": 10}, ValueError, "max_message must be at least 1024, not 10"),
        (
            {"start_timeout": 0},
            ValueError,
            "start_timeout must be > 0 seconds, not 0",
        ),
        (
            {"start_timeout": float("nan")},
            ValueError,
            "start_timeout must be > 0 seconds, not nan",
        ),
        (
            {"health_timeout": 0.0},
            ValueError,
            "health_timeout must be > 0 seconds or None, not 0.0",
        ),
        (
            {"health_timeout": float("nan")},
            ValueError,
            "health_timeout must be > 0 seconds or None, not nan",
        ),
        (
            {"heartbeat_timeout": 0},
            ValueError,
            "heartbeat_timeout must be > 0 seconds, not 0",
        ),
        (
            {"launcher": "fork"},
            ValueError,
            "launcher must be one of forkserver, spawn, not 'fork'",
        ),
        (
            {"loop": "trio"},
            ValueError,
            "loop must be one of asyncio, uvloop, not 'trio'",
        ),
        (
            {"output": "null"},
            ValueError,
            "output must be one of log, inherit, not 'null'",
        ),
        ({"timeout": -1}, ValueError, "timeout must be > 0 seconds, not -1"),
        ({"on_crash": 3}, TypeError, "on_crash must be callable, not 3"),
        ({"initializer": "f"}, TypeError, "initializer must be callable, not 'f'"),
        ({"preload": "numpy"}, TypeError, "preload takes names of modules: ('numpy',)"),
        (
            {"initializer": print, "initargs": (LOCK,)},
            JobNotPicklableError,
            f"initializer or initargs cannot be pickled: {NO_PICKLE}",
        ),
    ],
)
def test_a_wrong_argument_is_refused_at_once(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        Pool(**options)


def test_an_initializer_that_carries_too_much_is_refused() -> None:
    text = r"have 6\d{7} bytes when pickled, and 67108864 is the most"
    with pytest.raises(ValueError, match=text):
        Pool(initializer=print, initargs=(bytes(1 << 26),))


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts must be between 1 and"),
        ({"retry_on": "crash"}, TypeError, r"retry_on takes several: \('crash',\)"),
        ({"retry_on": OSError}, TypeError, "retry_on takes several: "),
        ({"retry_on": ("bad",)}, ValueError, "bad"),
        ({"max_attempts": None}, TypeError, "max_attempts must be an int, not None"),
        ({"priority": 0.5}, TypeError, "priority must be an int, not 0.5"),
        ({"timeout": 0}, ValueError, "timeout must be > 0 seconds, not 0"),
        (
            {"timeout": "1"},
            TypeError,
            "timeout must be a number of seconds or None, not '1'",
        ),
        (
            {"cancel_grace": None},
            TypeError,
            "cancel_grace must be a number of seconds, not None",
        ),
        ({"on_cancel": "stop"}, ValueError, "on_cancel must be one of interrupt, kill"),
        (
            {"time_out": 1},
            TypeError,
            "there is no option 'time_out'; there are: max_attempts, retry_on, timeout, ",
        ),
    ],
)
def test_a_wrong_option_is_refused_before_any_job(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        Pool(1).options(**options)


def test_options_add_up() -> None:
    view = Pool(1, timeout=5.0).options(max_attempts=2).options(queue_timeout=3.0)
    options = view.options(max_attempts=4)._options
    assert options.attempts.max_attempts == 4
    assert (options.limits.timeout, options.limits.queue_timeout) == (5.0, 3.0)
