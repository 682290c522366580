"""What is said to wrong arguments, before anything is started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

import asyncpool.ray
from asyncpool import (
    Cluster,
    LeaseKeeper,
    Pool,
    ProcessPoolExecutor,
    WorkerLimits,
    to_process,
)
from asyncpool.cluster import Worker, asgi, protocol, streams
from asyncpool.errors import JobNotPicklableError

Wrong = dict[str, Any]
LOCK = threading.Lock()
NAN = float("nan")
NAME = (
    "a name, which is 1 to 64 of A-Z, a-z, 0-9, '.', '-', '_' and ':', the first of them "
    "neither '.' nor '-', not"
)
CONTROL = f"ValueError: control takes True, a path with a slash in it, or {NAME}"
TRACING = "tests.helpers.tracing"


async def serve(*_: Worker) -> None: ...


@contextmanager
def refused(text: str) -> Iterator[None]:
    """Check that there is this error; a text that ends in … may go on."""
    with pytest.raises((TypeError, ValueError, JobNotPicklableError)) as caught:
        yield
    found = f"{caught.type.__name__}: {caught.value}"
    begin = text.removesuffix("…")
    assert found == text or (begin != text and found.startswith(begin)), found


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": 0}, "ValueError: workers must be at least 1, not 0"),
        (
            {"workers": 10**9},
            "ValueError: workers must be at most 4096, not 1000000000",
        ),
        ({"workers": 2.0}, "TypeError: workers must be an int, not 2.0"),
        ({"workers": "2"}, "TypeError: workers must be an int, not '2'"),
        (
            {"restart_policy": {}},
            "TypeError: restart_policy must be a RestartPolicy, not {}",
        ),
        ({"max_queued": -1}, "ValueError: max_queued must be at least 0, not -1"),
        ({"trace": 3}, "TypeError: trace must be a path or None, not 3"),
        ({"trace": ""}, "ValueError: trace is empty: name a file"),
        (
            {"control": 3},
            "TypeError: control must be a bool, a name, a path or None, not 3",
        ),
        ({"control": "my shop"}, f"{CONTROL} 'my shop'"),
        ({"control": ""}, f"{CONTROL} ''"),
        (
            {"control": True, "name": "shop/images"},
            (
                "ValueError: with control=True commands find the pool by its name, "
                f"{NAME.removeprefix('a name, ')} 'shop/images': give it such a name, or give "
                "one to control"
            ),
        ),
        (
            {"name": "shop\udc80"},
            (
                "ValueError: name must be text that can be written as UTF-8, not 'shop\\udc80': "
                "it is in logs and metrics"
            ),
        ),
        ({"name": 3}, "TypeError: name must be a str or None, not 3"),
        (
            {"max_message_size": 10},
            "ValueError: max_message_size must be at least 1024, not 10",
        ),
        ({"start_timeout": 0}, "ValueError: start_timeout must be > 0 seconds, not 0"),
        (
            {"start_timeout": NAN},
            "ValueError: start_timeout must be > 0 seconds, not nan",
        ),
        (
            {"start_timeout": None},
            "TypeError: start_timeout must be a number of seconds, not None",
        ),
        (
            {"close_timeout": 0.0},
            "ValueError: close_timeout must be > 0 seconds or None, not 0.0",
        ),
        (
            {"close_timeout": "x"},
            "TypeError: close_timeout must be a number of seconds or None, not 'x'",
        ),
        (
            {"ping_timeout": NAN},
            "ValueError: ping_timeout must be > 0 seconds or None, not nan",
        ),
        (
            {"ping_timeout": [3]},
            "TypeError: ping_timeout must be a number of seconds or None, not [3]",
        ),
        (
            {"heartbeat_timeout": 0},
            "ValueError: heartbeat_timeout must be > 0 seconds, not 0",
        ),
        (
            {"idle_timeout": "x"},
            "TypeError: idle_timeout must be a number of seconds, not 'x'",
        ),
        ({"timeout": -1}, "ValueError: timeout must be > 0 seconds, not -1"),
        (
            {"launcher": "fork"},
            "ValueError: launcher must be one of forkserver, spawn, not 'fork'",
        ),
        (
            {"worker_loop": "trio"},
            "ValueError: worker_loop must be one of asyncio, uvloop, not 'trio'",
        ),
        (
            {"worker_output": "null"},
            "ValueError: worker_output must be one of log, inherit, not 'null'",
        ),
        ({"ready": "some"}, "ValueError: ready must be one of any, all, not 'some'"),
        (
            {"max_surge": 0},
            "ValueError: max_surge and max_unavailable cannot both be 0",
        ),
        ({"on_crash": 3}, "TypeError: on_crash must be callable, not 3"),
        ({"initializer": "f"}, "TypeError: initializer must be callable, not 'f'"),
        ({"initargs": 3}, "TypeError: initargs takes a tuple of arguments, not 3"),
        ({"initargs": "ab"}, "TypeError: initargs takes several: ('ab',)"),
        (
            {"initializer": print, "initargs": (LOCK,)},
            (
                "JobNotPicklableError: initargs[0] cannot be pickled: TypeError: cannot pickle "
                "'_thread.lock' object"
            ),
        ),
        ({"preload": "numpy"}, "TypeError: preload takes several: ('numpy',)"),
        ({"preload": 3}, "TypeError: preload takes names of modules, not 3"),
        ({"preload": b"a"}, "TypeError: preload takes names of modules, not b'a'"),
        ({"preload": ["re", 3]}, "TypeError: preload takes names of modules, not 3"),
        ({"propagate": "a:b"}, "TypeError: propagate takes several: ('a:b',)"),
        (
            {"propagate": ["tracing"]},
            "ValueError: propagate takes names such as 'package.module:name'…",
        ),
        (
            {"propagate": ["no_such_module:x"]},
            "ValueError: propagate: 'no_such_module:x' cannot be imported: No module named…",
        ),
        (
            {"propagate": [f"{TRACING}:nothing"]},
            f"ValueError: propagate: '{TRACING}:nothing' cannot be imported: module…",
        ),
        (
            {"propagate": [f"{TRACING}:NO_VARIABLE"]},
            f"TypeError: propagate: '{TRACING}:NO_VARIABLE' is no context variable: 7…",
        ),
        *(
            (
                {"propagate": wrong},
                "TypeError: propagate takes context variables and their names, such as …",
            )
            for wrong in (7, [7])
        ),
        (
            {"propagate": [ContextVar("lost")]},
            (
                "ValueError: propagate: context variable 'lost' is no attribute of a module, so "
                "workers…"
            ),
        ),
        (
            {"propagate": ["__main__:x"]},
            (
                "ValueError: propagate: context variable 'x' lives in __main__, where workers "
                "cannot…"
            ),
        ),
        # Sizes.
        (
            {"workers": (3, 2)},
            ("ValueError: workers must be the least and the most, not (3, 2)"),
        ),
        (
            {"workers": (1, 2, 3)},
            (
                "TypeError: workers must be an int, or a pair such as (2, 16), not (1, 2, 3)"
            ),
        ),
        ({"workers": (1, "2")}, ("TypeError: workers must be an int, not '2'")),
        # The options of other libraries, and those of jobs.
        (
            {"max_workers": 2},
            "TypeError: Pool() takes no max_workers=: it is Pool(workers=...)",
        ),
        (
            {"maxtasksperchild": 9},
            "TypeError: Pool() takes no maxtasksperchild=: it is Pool(worker_limits=WorkerLimits(max_jobs=...))",
        ),
        (
            {"priority": 1},
            "TypeError: Pool() takes no priority=: as an option of each job it goes into options(priority=...)",
        ),
        (
            {"color": 1},
            "TypeError: Pool.__init__() got an unexpected keyword argument 'color'…",
        ),
        ({"workers": True}, "TypeError: workers must be an int, not True"),
        ({"preload": b"ab"}, "TypeError: preload takes names of modules, not b'ab'"),
        ({"max_surge": -1}, ("ValueError: max_surge must be at least 0, not -1")),
        ({"concurrency": 0}, ("ValueError: concurrency must be at least 1, not 0")),
        (
            {"concurrency": 1025},
            (
                "ValueError: concurrency must be at most 1024, not 1025: have more workers instead"
            ),
        ),
        ({"concurrency": 2.0}, ("TypeError: concurrency must be an int, not 2.0")),
        ({"fresh": 1}, ("TypeError: fresh must be True or False, not 1")),
        (
            {"fresh": True, "concurrency": 2},
            (
                "ValueError: fresh gives each job a worker of its own, and concurrency is 2"
            ),
        ),
        (
            {"fresh": True, "worker_limits": WorkerLimits(max_jobs=3)},
            (
                "ValueError: fresh gives each job a worker of its own, and max_jobs of worker_limits is 3"
            ),
        ),
        # What travels.
        (
            {"codec": 3},
            (
                "TypeError: codec must be 'json', 'msgspec' or an object with name, encode() and "
                "decode(), not 3"
            ),
        ),
        (
            {"errors": [KeyError]},
            ("ValueError: errors is for pools with a codec, and this one has none"),
        ),
        (
            {"codec": "json", "functions": ["a"]},
            (
                "ValueError: functions takes functions and names such as 'package.module:name' and "
                "'package.module:*', not 'a'"
            ),
        ),
        (
            {"codec": "json", "errors": [3]},
            ("TypeError: errors takes classes of exceptions, not 3"),
        ),
        (
            {"codec": "json", "initializer": lambda: None},
            (
                "JobNotPicklableError: initializer cannot be sent by its name, as this pool does: "
                "tests.test_arguments.<lambda> is a lambda: use a function of a module"
            ),
        ),
        ({"around": 3}, ("TypeError: around must be callable, not 3")),
        (
            {"around": "shop.tracing"},
            (
                "ValueError: around takes a name such as 'package.module:name', not 'shop.tracing'"
            ),
        ),
        (
            {"around": LOCK.acquire},
            (
                "JobNotPicklableError: around cannot be pickled: TypeError: cannot pickle '_thread.lock' object"
            ),
        ),
    ],
)
def test_a_wrong_argument_is_refused_at_once(options: Wrong, text: str) -> None:
    with refused(text):
        Pool(**options)


ADDRESSES = (
    "TypeError: bind takes an address, or several, such as '127.0.0.1:8000', not"
)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bind": 8000}, f"{ADDRESSES} 8000"),
        ({"bind": None}, f"{ADDRESSES} None"),
        ({"bind": [":0", 8000]}, f"{ADDRESSES} 8000"),
        ({"bind": b":0"}, f"{ADDRESSES} b':0'"),
        (
            {"drain_timeout": "x"},
            "TypeError: drain_timeout must be a number of seconds, not 'x'",
        ),
        (
            {"reload_drain_timeout": 0},
            "ValueError: reload_drain_timeout must be > 0 seconds or None, not 0",
        ),
        (
            {"restart_policy": 3},
            "TypeError: restart_policy must be a RestartPolicy, not 3",
        ),
        (
            {"worker_limits": 3},
            "TypeError: worker_limits must be a WorkerLimits, not 3",
        ),
        (
            {"worker_limits": WorkerLimits(drain_timeout=3.0)},
            (
                "ValueError: worker_limits of a cluster take no drain_timeout: give it to the "
                "cluster itself"
            ),
        ),
        (
            {"spread": "all"},
            "ValueError: spread must be one of handoff, shared, not 'all'",
        ),
        ({"ready": "some"}, "ValueError: ready must be one of any, all, not 'some'"),
        ({"preload": [3]}, "TypeError: preload takes names of modules, not 3"),
        ({"name": b"web"}, "TypeError: name must be a str or None, not b'web'"),
    ],
)
def test_a_cluster_refuses_a_wrong_argument_at_once(options: Wrong, text: str) -> None:
    with refused(text):
        Cluster(serve, **options)


MAKES = "a function that makes the context"
MAP: Callable[..., object] = partial(ProcessPoolExecutor(1).map, abs, [])
NO_TIME = "TypeError: timeout must be a number of seconds or None, not 'x'"


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (asgi, {"app": 3}, "TypeError: app must be an application, or its name, not 3"),
        (asgi, {"app": "a"}, "ValueError: app must be 'package.module:name', not 'a'"),
        (
            streams,
            {"handler": 3},
            "TypeError: handler must be a function, or its name, not 3",
        ),
        (
            streams,
            {"handler": serve, "ssl": 3},
            f"TypeError: ssl must be {MAKES}, or its name, not 3",
        ),
        (
            protocol,
            {"factory": 3},
            "TypeError: factory must be a function, or its name, not 3",
        ),
        (
            protocol,
            {"factory": "a:", "ssl": "a:b"},
            "ValueError: factory must be 'package.module:name', not 'a:'",
        ),
        (
            protocol,
            {"factory": "a:b", "ssl": "a"},
            "ValueError: ssl must be 'package.module:name', not 'a'",
        ),
        (
            ProcessPoolExecutor,
            {"max_workers": "2"},
            "TypeError: max_workers must be an int or None, not '2'",
        ),
        (
            ProcessPoolExecutor,
            {"initargs": 3},
            "TypeError: initargs takes a tuple of arguments, not 3",
        ),
        (MAP, {"timeout": "x"}, NO_TIME),
        (MAP, {"chunksize": 2.5}, "TypeError: chunksize must be an int, not 2.5"),
        (MAP, {"chunksize": None}, "TypeError: chunksize must be an int, not None"),
    ],
)
def test_servers_and_executors_refuse_it_too(
    make: Callable[..., object], options: Wrong, text: str
) -> None:
    with refused(text):
        make(**options)


TTL_TOO_SHORT = (
    "ValueError: an interval of 120 s and 3 retries, of 15 s each, can take 247.5 s until a "
    "lease is extended, and it is given up after 243 s, nine tenths of ttl=270: choose a "
    "shorter interval, a shorter timeout, or fewer retries"
)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"renew": 3}, "TypeError: renew must be callable, not 3"),
        ({"max_rate": 0}, "ValueError: max_rate must be > 0 and finite, not 0"),
        ({"max_rate": NAN}, "ValueError: max_rate must be > 0 and finite, not nan"),
        ({"max_rate": "x"}, "TypeError: max_rate must be a number, not 'x'"),
        ({"max_rate": None}, "TypeError: max_rate must be a number, not None"),
        (
            {"interval": float("inf")},
            "ValueError: interval must be > 0 and finite, not inf",
        ),
        (
            {"interval": "x"},
            "TypeError: interval must be a number of seconds, not 'x'",
        ),
        ({"timeout": -1}, "ValueError: timeout must be > 0 and finite, not -1"),
        ({"timeout": "x"}, NO_TIME),
        ({"max_retries": -1}, "ValueError: max_retries must be at least 0, not -1"),
        ({"max_retries": 1.5}, "TypeError: max_retries must be an int, not 1.5"),
        ({"ttl": 0}, "ValueError: ttl must be > 0 and finite, not 0"),
        ({"ttl": "x"}, "TypeError: ttl must be a number of seconds or None, not 'x'"),
        ({"ttl": 270}, TTL_TOO_SHORT),
        (
            {"max_rate": 0.1, "interval": 5.0},
            (
                "ValueError: max_rate=0.1 renewals/s for interval=5 s make 0.5 renewals: one at "
                "least is needed"
            ),
        ),
    ],
)
def test_a_lease_keeper_does_too(options: Wrong, text: str) -> None:
    with refused(text):
        LeaseKeeper(**{"renew": print, **options})


TOO_LARGE = "a number of seconds or None, and this int is too large for one…"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_attempts": 0}, "ValueError: max_attempts must be between 1 and…"),
        ({"max_attempts": None}, "TypeError: max_attempts must be an int, not None"),
        ({"retry_on": "crash"}, "TypeError: retry_on takes several: ('crash',)…"),
        ({"retry_on": OSError}, "TypeError: retry_on takes several: …"),
        ({"retry_on": 3}, "TypeError: retry_on takes kinds of crashes and types of …"),
        (
            {"retry_on": [3]},
            "TypeError: retry_on takes kinds of crashes and types of …",
        ),
        ({"retry_on": ("bad",)}, "ValueError: …"),
        ({"priority": 0.5}, "TypeError: priority must be an int, not 0.5"),
        ({"priority": 1 << 63}, "ValueError: priority must be an int of 64 bits: …"),
        ({"priority": -(1 << 63) - 1}, "ValueError: priority must be an int of 64 …"),
        *(
            ({name: 10**400}, f"ValueError: {name} must be {TOO_LARGE}")
            for name in ("timeout", "queue_timeout", "heartbeat_timeout", "deadline")
        ),
        ({"timeout": 0}, "ValueError: timeout must be > 0 seconds, not 0"),
        ({"timeout": "1"}, "TypeError: timeout must be a number of seconds or None, …"),
        (
            {"cancel_grace": None},
            "TypeError: cancel_grace must be a number of seconds, …",
        ),
        (
            {"on_cancel": "stop"},
            "ValueError: on_cancel must be one of interrupt, kill…",
        ),
        (
            {"time_out": 1},
            "TypeError: there is no option 'time_out'; there are: max_attempts, retry_on, …",
        ),
    ],
)
def test_a_wrong_option_is_refused_before_any_job(options: Wrong, text: str) -> None:
    with refused(text):
        Pool(1).options(**options)


@pytest.mark.asyncio
async def test_what_a_pool_or_cluster_is_told_later_is_checked_too() -> None:
    pool, cluster, run = Pool(1), Cluster(serve), to_process.run_sync
    no_file = "file must be a file or a descriptor, not 'x'"
    calls: list[tuple[Any, tuple[Any, ...], Wrong, str]] = [
        (pool.close, (), {"timeout": "x"}, NO_TIME),
        (cluster.close, ("x",), {}, NO_TIME),
        (pool.close, (), {"finish": [3]}, r"ValueError: finish must be one of …"),
        (
            cluster.run,
            (),
            {"control": 3},
            "TypeError: control must be a str or None, not 3",
        ),
        (
            cluster.send_socket,
            (0, 3),
            {},
            "TypeError: sock must be a socket, not 3",
        ),
        (cluster.send_file, (0, "x"), {}, f"TypeError: {no_file}"),
        (run, (3,), {}, "TypeError: run_sync() takes a callable first, not 3"),
        (
            run,
            (abs, -1),
            {"limiter": 3},
            "TypeError: limiter must be an anyio.CapacityLimiter, not 3",
        ),
    ]
    for call, args, options, text in calls:
        with refused(text):
            await call(*args, **options)


def test_an_initializer_that_carries_too_much_is_refused() -> None:
    text = r"have 6\d{7} bytes when pickled, and 67108864 is the most"
    with pytest.raises(ValueError, match=text):
        Pool(initializer=print, initargs=(bytes(1 << 26),))


def test_a_pool_over_ray_writes_no_trace() -> None:
    with pytest.raises(TypeError, match=r"^trace: a pool over Ray writes no trace, "):
        asyncpool.ray.Pool(trace="trace.json")


def test_numbers_of_other_libraries_are_numbers() -> None:
    class Int64:
        def __index__(self) -> int:
            return 2

    two: Any = Int64()
    given: dict[str, Any] = {"timeout": Fraction(1, 2), "max_attempts": two}
    options = Pool(two, max_queued=two).options(**given)._options
    found = options.timeout, options.max_attempts
    assert (found, [*map(type, found)]) == ((0.5, 2), [float, int])
    given = {"max_attempts": Fraction(1, 2)}
    with refused("TypeError: max_attempts must be an int, not Fraction(1, 2)"):
        Pool(1).options(**given)


def test_options_add_up() -> None:
    view = Pool(1, timeout=5.0).options(max_attempts=2).options(queue_timeout=3.0)
    options = view.options(max_attempts=4)._options
    assert options.max_attempts == 4
    assert (options.timeout, options.queue_timeout) == (5.0, 3.0)
