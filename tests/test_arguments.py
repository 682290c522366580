"""What is said to wrong arguments, before anything is started."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

import asyncpool.ray
from asyncpool import (
    Cluster,
    JobNotPicklableError,
    Pool,
    ProcessPoolExecutor,
    to_process,
)
from asyncpool.cluster import Worker, asgi, protocol, streams

LOCK = threading.Lock()
NO_PICKLE = "cannot pickle '_thread.lock' object"


async def serve(*_: Worker) -> None: ...


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"workers": 0}, ValueError, "workers must be at least 1, not 0"),
        (
            {"workers": 10**9},
            ValueError,
            "workers must be at most 4096, not 1000000000",
        ),
        ({"workers": 2.0}, TypeError, "workers must be an int, not 2.0"),
        ({"workers": "2"}, TypeError, "workers must be an int, not '2'"),
        (
            {"restart_policy": 3},
            TypeError,
            "restart_policy must be a RestartPolicy, not 3",
        ),
        (
            {"restart_policy": {}},
            TypeError,
            "restart_policy must be a RestartPolicy, not {}",
        ),
        ({"max_queued": -1}, ValueError, "max_queued must be at least 0, not -1"),
        ({"trace": 3}, TypeError, "trace must be a path or None, not 3"),
        ({"trace": ""}, ValueError, "trace is empty: name a file"),
        (
            {"control": 3},
            TypeError,
            "control must be a bool, a name, a path or None, not 3",
        ),
        (
            {"control": "my shop"},
            ValueError,
            (
                "control takes True, a path with a slash in it, or a name, which is 1 to 64 of "
                "A-Z, a-z, 0-9, '.', '-', '_' and ':', the first of them neither '.' nor '-', "
                "not 'my shop'"
            ),
        ),
        (
            {"control": ""},
            ValueError,
            (
                "control takes True, a path with a slash in it, or a name, which is 1 to 64 of "
                "A-Z, a-z, 0-9, '.', '-', '_' and ':', the first of them neither '.' nor '-', "
                "not ''"
            ),
        ),
        (
            {"control": True, "name": "shop/images"},
            ValueError,
            (
                "with control=True commands find the pool by its name, which is 1 to 64 of "
                "A-Z, a-z, 0-9, '.', '-', '_' and ':', the first of them neither '.' nor '-', "
                "not 'shop/images': give it such a name, or give one to control"
            ),
        ),
        (
            {"name": "shop\udc80"},
            ValueError,
            (
                "name must be text that can be written as UTF-8, not 'shop\\udc80': it is in "
                "logs and metrics"
            ),
        ),
        (
            {"max_message_size": 10},
            ValueError,
            "max_message_size must be at least 1024, not 10",
        ),
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
            {"close_timeout": 0.0},
            ValueError,
            "close_timeout must be > 0 seconds or None, not 0.0",
        ),
        (
            {"ping_timeout": 0.0},
            ValueError,
            "ping_timeout must be > 0 seconds or None, not 0.0",
        ),
        (
            {"ping_timeout": float("nan")},
            ValueError,
            "ping_timeout must be > 0 seconds or None, not nan",
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
            {"worker_loop": "trio"},
            ValueError,
            "worker_loop must be one of asyncio, uvloop, not 'trio'",
        ),
        (
            {"worker_output": "null"},
            ValueError,
            "worker_output must be one of log, inherit, not 'null'",
        ),
        ({"timeout": -1}, ValueError, "timeout must be > 0 seconds, not -1"),
        ({"on_crash": 3}, TypeError, "on_crash must be callable, not 3"),
        ({"initializer": "f"}, TypeError, "initializer must be callable, not 'f'"),
        ({"initargs": 3}, TypeError, "initargs takes a tuple of arguments, not 3"),
        ({"initargs": "ab"}, TypeError, "initargs takes several: ('ab',)"),
        ({"preload": "numpy"}, TypeError, "preload takes several: ('numpy',)"),
        ({"preload": 3}, TypeError, "preload takes names of modules, not 3"),
        ({"preload": b"a"}, TypeError, "preload takes names of modules, not b'a'"),
        ({"preload": ["re", 3]}, TypeError, "preload takes names of modules, not 3"),
        ({"name": 3}, TypeError, "name must be a str or None, not 3"),
        (
            {"idle_timeout": "x"},
            TypeError,
            "idle_timeout must be a number of seconds, not 'x'",
        ),
        (
            {"start_timeout": None},
            TypeError,
            "start_timeout must be a number of seconds, not None",
        ),
        (
            {"close_timeout": "x"},
            TypeError,
            "close_timeout must be a number of seconds or None, not 'x'",
        ),
        (
            {"ping_timeout": [3]},
            TypeError,
            "ping_timeout must be a number of seconds or None, not [3]",
        ),
        (
            {"initializer": print, "initargs": (LOCK,)},
            JobNotPicklableError,
            f"initargs[0] cannot be pickled: TypeError: {NO_PICKLE}",
        ),
    ],
)
def test_a_wrong_argument_is_refused_at_once(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        Pool(**options)


@pytest.mark.asyncio
async def test_a_wrong_end_is_refused() -> None:
    pool, cluster = Pool(1), Cluster(serve)
    close: Any = pool.close
    text = "timeout must be a number of seconds or None, not "
    for wrong in ("x", b"x"):
        with pytest.raises(TypeError, match=f"^{text}{wrong!r}$"):
            await close(timeout=wrong)
    with pytest.raises(TypeError, match=f"^{text}'x'$"):
        await cluster.close("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^finish must be one of .*, not \[3\]$"):
        await close(finish=[3])


ADDRESSES = "bind takes an address, or several, such as '127.0.0.1:8000'"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bind": 8000}, f"{ADDRESSES}, not 8000"),
        ({"bind": None}, f"{ADDRESSES}, not None"),
        ({"bind": [":0", 8000]}, f"{ADDRESSES}, not 8000"),
        ({"bind": b":0"}, f"{ADDRESSES}, not b':0'"),
        (
            {"drain_timeout": "x"},
            "drain_timeout must be a number of seconds, not 'x'",
        ),
        ({"restart_policy": 3}, "restart_policy must be a RestartPolicy, not 3"),
        ({"worker_limits": 3}, "worker_limits must be a WorkerLimits, not 3"),
        ({"preload": [3]}, "preload takes names of modules, not 3"),
        ({"name": b"web"}, "name must be a str or None, not b'web'"),
    ],
)
def test_a_cluster_refuses_a_wrong_argument_at_once(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        Cluster(serve, **options)


def test_what_a_start_waits_for_is_one_of_two() -> None:
    text = r"^ready must be one of any, all, not 'some'$"
    with pytest.raises(ValueError, match=text):
        Pool(ready="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=text):
        Cluster(serve, ready="some")  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_cluster_is_run_and_sent_what_there_is() -> None:
    cluster = Cluster(serve)
    with pytest.raises(TypeError, match=r"^control must be a str or None, not 3$"):
        await cluster.run(control=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^sock must be a socket, not 3$"):
        await cluster.send_socket(0, 3)  # type: ignore[arg-type]
    text = r"^file must be a file or a descriptor, not 'x'$"
    with pytest.raises(TypeError, match=text):
        await cluster.send_file(0, "x")  # type: ignore[arg-type]


MAKES = "a function that makes the context"


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: asgi(3), TypeError, "app must be an application, or its name, not 3"),
        (lambda: asgi("a"), ValueError, "app must be 'package.module:name', not 'a'"),
        (
            lambda: streams(3),  # type: ignore[arg-type]
            TypeError,
            "handler must be a function, or its name, not 3",
        ),
        (
            lambda: streams(serve, ssl=3),  # type: ignore[arg-type]
            TypeError,
            f"ssl must be {MAKES}, or its name, not 3",
        ),
        (
            lambda: protocol(3),  # type: ignore[arg-type]
            TypeError,
            "factory must be a function, or its name, not 3",
        ),
        (
            lambda: protocol("a:", ssl="a:b"),
            ValueError,
            "factory must be 'package.module:name', not 'a:'",
        ),
        (
            lambda: protocol("a:b", ssl="a"),
            ValueError,
            "ssl must be 'package.module:name', not 'a'",
        ),
    ],
)
def test_a_target_is_made_of_what_can_be_called(
    make: Callable[[], object], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        make()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_workers": "2"}, "max_workers must be an int or None, not '2'"),
        ({"initargs": 3}, "initargs takes a tuple of arguments, not 3"),
    ],
)
def test_an_executor_refuses_a_wrong_argument_at_once(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        ProcessPoolExecutor(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout": "x"}, "timeout must be a number of seconds or None, not 'x'"),
        ({"chunksize": 2.5}, "chunksize must be an int, not 2.5"),
        ({"chunksize": None}, "chunksize must be an int, not None"),
    ],
)
def test_a_map_of_an_executor_does_too(options: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        ProcessPoolExecutor(1).map(abs, [], **options)


@pytest.mark.asyncio
async def test_a_call_in_a_process_does_too() -> None:
    run: Any = to_process.run_sync
    with pytest.raises(
        TypeError, match=r"^run_sync\(\) takes a callable first, not 3$"
    ):
        await run(3)
    text = r"^limiter must be an anyio\.CapacityLimiter, not 3$"
    with pytest.raises(TypeError, match=text):
        await run(abs, -1, limiter=3)


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
        (
            {"retry_on": 3},
            TypeError,
            "^retry_on takes kinds of crashes and types of exceptions, not 3$",
        ),
        (
            {"retry_on": [3]},
            TypeError,
            "^retry_on takes kinds of crashes and types of exceptions, not 3$",
        ),
        ({"retry_on": ("bad",)}, ValueError, "bad"),
        ({"max_attempts": None}, TypeError, "max_attempts must be an int, not None"),
        ({"priority": 0.5}, TypeError, "priority must be an int, not 0.5"),
        *(
            (
                {"priority": number},
                ValueError,
                r"priority must be an int of 64 bits: from -2\*\*63 to 2\*\*63 - 1",
            )
            for number in (1 << 63, -(1 << 63) - 1)
        ),
        *(
            (
                {name: 10**400},
                ValueError,
                f"{name} must be a number of seconds or None, and this int is too large for one",
            )
            for name in ("timeout", "queue_timeout", "heartbeat_timeout", "deadline")
        ),
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


def test_a_pool_over_ray_writes_no_trace() -> None:
    with pytest.raises(TypeError, match=r"^trace: a pool over Ray writes no trace, "):
        asyncpool.ray.Pool(trace="trace.json")


def test_options_add_up() -> None:
    view = Pool(1, timeout=5.0).options(max_attempts=2).options(queue_timeout=3.0)
    options = view.options(max_attempts=4)._options
    assert options.attempts.max_attempts == 4
    assert (options.limits.timeout, options.limits.queue_timeout) == (5.0, 3.0)
