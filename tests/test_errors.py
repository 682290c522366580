"""Tests of asyncpool/errors.py, and of how a crash is put into words."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
from typing import Any

import pytest

from asyncpool import errors
from asyncpool.enums import CrashKind, Delivery, NextStep, TimeLimit
from asyncpool.errors import (
    AsyncPoolError,
    BroadcastError,
    HookError,
    JobError,
    JobNotPicklableError,
    JobRaisedError,
    JobTimeoutError,
    LeaseLostError,
    NodeLostError,
    NoWorkerError,
    PoolBrokenError,
    PoolClosedError,
    PoolFullError,
    ProfileInProgressError,
    ProtocolError,
    RemoteError,
    RemoteTraceback,
    ResizeError,
    RollInProgressError,
    ThrottledError,
    UnsupportedPlatformError,
    WorkerCrashedError,
    WorkerGoneError,
    WorkerHungError,
    WorkerOutOfMemoryError,
    WorkerStartError,
)
from asyncpool.events import Crash

CRASH = Crash(
    slot=2,
    generation=7,
    pid=4242,
    exit_code=None,
    signal="SIGSEGV",
    kind=CrashKind.CRASH,
    uptime=12.5,
    job_id=17,
    attempt=1,
    detail="",
    stderr_tail=(),
    next_step=NextStep.RESTART,
    next_start=0.0,
)


def crash(**changes: Any) -> Crash:
    return dataclasses.replace(CRASH, **changes)


WORDY = crash(stderr_tail=("one", "two"))
NO_PROCESS = crash(
    pid=None,
    signal=None,
    kind=CrashKind.FAILED_START,
    job_id=None,
    attempt=0,
    detail="too many open files",
)
OUT_OF_MEMORY = crash(signal="SIGKILL", kind=CrashKind.OUT_OF_MEMORY)
HUNG = crash(signal="SIGKILL", kind=CrashKind.HUNG, detail="silent for 5 s")


def lost(
    kind: type[WorkerCrashedError],
    *crashes: Crash,
    delivery: Delivery = Delivery.STARTED,
    **more: Any,
) -> WorkerCrashedError:
    """Return the error of a job whose workers have died."""
    return kind(job_id=17, crashes=crashes, delivery=delivery, **more)


def late(
    limit: TimeLimit, seconds: float, *, attempt: int = 1, **more: Any
) -> JobTimeoutError:
    return JobTimeoutError(
        job_id=17, attempt=attempt, limit=limit, seconds=seconds, **more
    )


KILLED = "worker 4242 in slot 2 was killed by SIGSEGV"
OWN = f"{KILLED} during attempt 1 of job 17"
NODE: dict[str, Any] = {"node": "models@4711"}

# Each error, with the one message that it must have.
EXAMPLES: dict[AsyncPoolError, str] = {
    UnsupportedPlatformError("no sockets here"): "no sockets here",
    PoolClosedError(): "the pool is closed",
    PoolClosedError("closed", job_id=3, delivery=Delivery.STARTED): "closed",
    BroadcastError(
        "shop.configure",
        results={3: None, 0: 7},
        errors={2: ValueError("two"), 1: KeyError("one")},
    ): "the broadcast of shop.configure has failed in 2 of 4 workers; in slot 1: "
    "KeyError: 'one'",
    PoolFullError(waiting=64, max_queued=64): (
        "64 jobs are waiting and max_queued is 64: "
        "shed load, or try again when some have finished"
    ),
    PoolFullError(waiting=1, max_queued=1): (
        "1 job is waiting and max_queued is 1: "
        "shed load, or try again when some have finished"
    ),
    PoolBrokenError(reason="no hope", crashes=(), retry_after=None): (
        "the pool is broken: no hope"
    ),
    PoolBrokenError(reason="no hope", crashes=(NO_PROCESS, WORDY), retry_after=30.0): (
        f"the pool is broken: no hope; last: {OWN}\n    one\n    two"
    ),
    ProtocolError("bad frame"): "bad frame",
    NoWorkerError(3): "there is no worker in slot 3",
    NoWorkerError(None): "there is no worker that could take the descriptor",
    RollInProgressError("it is being rolled"): "it is being rolled",
    ProfileInProgressError("one is being taken"): "one is being taken",
    WorkerGoneError(slot=2, pid=4242): (
        "the pool has ended worker 4242 in slot 2; the session that had it to itself is over: "
        "begin another one, and rebuild its state there"
    ),
    WorkerGoneError(slot=2, pid=4242, crash=HUNG): (
        f"{HUNG}; the session that had it to itself is over: "
        "begin another one, and rebuild its state there"
    ),
    ResizeError(crash(job_id=None)): f"there are not as many workers yet: {KILLED}",
    LeaseLostError(): "the lease is gone",
    LeaseLostError("message 7 has another owner"): "message 7 has another owner",
    ThrottledError(): "the outside system asks for fewer renewals",
    ThrottledError("429", retry_after=2.5): "429",
    late(TimeLimit.TIMEOUT, 2.5, attempt=2): (
        "job 17 ran longer than its timeout of 2.5 s, in attempt 2"
    ),
    late(TimeLimit.TIMEOUT, 2.5, stack="a\n  b\n  c\n  d\n  e"): (
        "job 17 ran longer than its timeout of 2.5 s, in attempt 1"
        "\n    a\n      b\n      c\n      d"
    ),
    late(TimeLimit.QUEUE_TIMEOUT, 60.0, attempt=0): (
        "job 17 waited longer than its queue_timeout of 60 s, in the queue"
    ),
    late(TimeLimit.TIMEOUT, 1.0, function="app.work"): (
        "job 17 (app.work) ran longer than its timeout of 1 s, in attempt 1"
    ),
    late(TimeLimit.DEADLINE, 1234.5, attempt=0): (
        "job 17 missed its deadline, in the queue"
    ),
    late(TimeLimit.DEADLINE, 1234.5, attempt=3): (
        "job 17 missed its deadline, in attempt 3"
    ),
    JobNotPicklableError(
        "args[1] cannot be pickled", direction="arguments", name="args[1]", job_id=3
    ): "args[1] cannot be pickled",
    RemoteError("shop.StockError", "no tea", traceback="in sell", args=("tea", 3)): (
        "the job raised shop.StockError: no tea"
    ),
    JobRaisedError(SystemExit(3), job_id=17, attempt=1): (
        "the job raised SystemExit(3)"
    ),
    HookError(
        "shop.tracing:around",
        stage="enter",
        exception=KeyError("no"),
        job_id=17,
        attempt=1,
        function="shop.work",
    ): (
        "the hook shop.tracing:around failed before job 17 (shop.work) had begun: "
        "KeyError('no')"
    ),
    HookError("around", stage="exit", exception=SystemExit(3), job_id=17): (
        "the hook around failed after job 17 had returned: SystemExit(3)"
    ),
    lost(WorkerCrashedError, WORDY): f"{OWN}; the job had started\n    one\n    two",
    lost(
        WorkerCrashedError,
        crash(function="app.work", concurrent_jobs=(18,)),
        function="app.work",
    ): f"{OWN} (app.work), beside which it ran job 18; the job had started",
    lost(WorkerCrashedError, crash(other_jobs=1)): (
        f"{OWN}, beside which it ran 1 other job; the job had started"
    ),
    lost(WorkerCrashedError, crash(concurrent_jobs=(18, 19), other_jobs=2)): (
        f"{OWN}, beside which it ran jobs 18 and 19, and 2 other jobs; the job had started"
    ),
    lost(
        WorkerCrashedError,
        crash(job_id=None, attempt=0, other_jobs=2),
        delivery=Delivery.SENT,
    ): f"{KILLED} while it ran 2 other jobs; job 17 had been sent but not started",
    lost(
        WorkerStartError,
        NO_PROCESS,
        delivery=Delivery.NEVER_SENT,
        function="app.work",
    ): (
        "a worker in slot 2 could not be started: too many open files; "
        "job 17 (app.work) had not been sent"
    ),
    lost(WorkerHungError, CRASH, HUNG, delivery=Delivery.SENT): (
        "worker 4242 in slot 2 was killed by SIGKILL (hung): silent for 5 s during "
        "attempt 1 of job 17; the job had been sent but not started"
    ),
    lost(WorkerOutOfMemoryError, OUT_OF_MEMORY): (
        "worker 4242 in slot 2 was killed by SIGKILL (out of memory) during attempt "
        "1 of job 17; the job had started"
    ),
    lost(NodeLostError, OUT_OF_MEMORY, silence=0.5, **NODE): (
        "agent models@4711 is gone, or has given this client up; it was heard last 0.5 s before; "
        "job 17 had started"
    ),
    lost(NodeLostError, OUT_OF_MEMORY, silence=0.0, own_silence=61.25, **NODE): (
        "agent models@4711 is gone, or has given this client up, which was silent for 61.2 s: its "
        "event loop was blocked, or its process was stopped; job 17 had started"
    ),
}


def details(error: BaseException) -> dict[str, Any]:
    # Exceptions are equal only to themselves, so their text has to do.
    return {
        name: repr(value) if isinstance(value, BaseException | dict) else value
        for name, value in vars(error).items()
    }


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_the_message_says_what_happened(error: AsyncPoolError) -> None:
    assert str(error) == EXAMPLES[error]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_and_copying(error: AsyncPoolError) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        twin = pickle.loads(pickle.dumps(error, protocol))
        assert type(twin) is type(error)
        assert (str(twin), details(twin)) == (str(error), details(error))
        assert twin.args == error.args
    assert details(copy.copy(error)) == details(error)


def test_notes_survive_pickling() -> None:
    error = PoolClosedError()
    error.add_note("in row 17")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["in row 17"]


@pytest.mark.parametrize(
    "error",
    [
        JobRaisedError(KeyboardInterrupt("stop")),
        HookError("around", stage="enter", exception=KeyboardInterrupt("stop")),
    ],
)
def test_a_wrapped_exception_is_the_cause_also_after_pickling(
    error: JobRaisedError | HookError,
) -> None:
    assert error.__cause__ is error.exception
    twin = pickle.loads(pickle.dumps(error))
    assert twin.__cause__ is twin.exception
    assert repr(twin.exception) == "KeyboardInterrupt('stop')"


def test_the_first_failure_of_a_broadcast_is_its_cause_also_after_pickling() -> None:
    error = BroadcastError("f", results={}, errors={2: KeyError(2), 1: ValueError(1)})
    assert error.__cause__ is error.errors[1]
    assert list(error.errors) == [1, 2]
    twin = pickle.loads(pickle.dumps(error))
    assert twin.__cause__ is twin.errors[1]


def test_there_is_an_example_of_each() -> None:
    abstract = {AsyncPoolError, JobError}
    assert {type(error) for error in EXAMPLES} == {
        getattr(errors, name)
        for name in errors.__all__
        if name not in {"RemoteTraceback", "JobCancelled"}
    } - abstract


def test_only_what_a_stranger_would_catch_is_a_built_in_error_too() -> None:
    builtin = {
        name: {
            base
            for base in getattr(errors, name).__mro__
            if base.__module__ == "builtins"
        }
        - {Exception, BaseException, object}
        for name in errors.__all__
    }
    assert {name: bases for name, bases in builtin.items() if bases} == {
        "NoWorkerError": {LookupError},
        "PoolClosedError": {RuntimeError},
        "JobTimeoutError": {TimeoutError, OSError},
    }
    assert not issubclass(AsyncPoolError, asyncio.CancelledError)


def test_a_crash_error_tells_about_its_last_crash() -> None:
    error = lost(WorkerHungError, CRASH, HUNG)
    for name in ("kind", "slot", "generation", "pid", "exit_code", "signal"):
        assert getattr(error, name) == getattr(HUNG, name)
    assert (error.attempt, error.stderr_tail) == (HUNG.attempt, HUNG.stderr_tail)
    assert error.crashes == (CRASH, HUNG)


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({}, "was killed by SIGSEGV"),
        ({"signal": None, "exit_code": 3}, "exited with status 3"),
        ({"signal": None, "exit_code": 0}, "exited with status 0"),
        ({"signal": None}, "ended with an unknown status"),
        ({"signal": None, "pid": None}, "could not be started"),
        ({"kind": "protocol"}, "was killed by SIGSEGV (protocol)"),
        ({"detail": "why"}, "was killed by SIGSEGV: why"),
    ],
)
def test_how_a_worker_ended(changes: dict[str, Any], how: str) -> None:
    assert crash(**changes).how == how
    assert how in str(crash(**changes))


ANOTHERS = crash(job_id=18, attempt=3)


@pytest.mark.parametrize(
    ("crashes", "attempt"),
    [
        ((CRASH,), 1),
        ((ANOTHERS,), 0),
        ((CRASH, ANOTHERS), 1),
        ((crash(job_id=None, attempt=0),), 0),
    ],
    ids=["its own", "another job's", "first its own", "nobody's"],
)
def test_the_attempt_of_a_crash_error_is_its_jobs(
    crashes: tuple[Crash, ...], attempt: int
) -> None:
    assert lost(WorkerCrashedError, *crashes).attempt == attempt


FATAL = "Fatal Python error: Segmentation fault"
ABORTED = "Fatal Python error: Aborted"
HERE = "Current thread 0x0 [python] (most recent call first):"
C_STACK = "Current thread's C stack trace (most recent call first):"
CALLS = tuple(
    f'  File "a.py", line {n} in {name}'
    for n, name in enumerate(("crash", "job", "execute", "serve"), 1)
)
GUILTY = tuple(
    f'  Binary file "/lib/python3/_guilty.so", at {name}+0x1 [0x8]'
    for name in ("inner", "outer")
)
PYTHON = '  Binary file "/bin/python" [0xa]'


@pytest.mark.parametrize(
    ("tail", "shown"),
    [
        ([f"line {n}" for n in range(9)], [f"line {n}" for n in range(4, 9)]),
        # Of a fatal error the innermost calls are quoted.
        (["some output", FATAL, "", HERE, *CALLS], [FATAL, HERE, *CALLS[:3]]),
        # Of one in a library its frames are quoted too.
        (
            [
                *(FATAL, "", "Thread 0x1 [Thread-1] (most recent call first):"),
                *('  File "other.py", line 1 in wait', "", HERE, CALLS[0], "", C_STACK),
                '  Binary file "/bin/python", at _Py_DumpStack+0x4a [0x4]',
                '  Binary file "/bin/python" [0x5]',
                '  Binary file "/lib/libc.so.6", at +0x406b0 [0x6]',
                '  Binary file "/lib/libc.so.6", at +0x16a499 [0x7]',
                *GUILTY,
                PYTHON,
                '  Binary file "/bin/python", at PyEval_EvalCode+0x9d [0xb]',
                '  Binary file "/lib/libc.so.6", at __libc_start_main+0x87 [0xc]',
                '  Binary file "/bin/python", at _start+0x21 [0xd]',
            ],
            [FATAL, HERE, CALLS[0], *GUILTY, PYTHON],
        ),
        # A stack of C without one of Python is no stack of Python.
        ([ABORTED, C_STACK, "  <cannot get C stack>"], [ABORTED]),
        ([ABORTED, "x", "y"], [ABORTED]),
    ],
    ids=["its end", "calls", "frames of a library", "no stack of Python", "no stack"],
)
def test_of_a_long_stderr_a_part_is_quoted(tail: list[str], shown: list[str]) -> None:
    error = lost(WorkerCrashedError, crash(stderr_tail=tuple(tail)))
    assert str(error).splitlines()[1:] == [f"    {line}" for line in shown]
    assert error.stderr_tail == tuple(tail)


@pytest.mark.parametrize(
    ("kind", "tail", "shown"),
    [
        (CrashKind.FAILED_START, ("a line",), "    KeyError: 1"),
        (CrashKind.FAILED_START, ("KeyError: 1", "behind it"), "    behind it"),
        (CrashKind.CRASH, ("a line",), "    a line"),
    ],
)
def test_the_traceback_of_a_start_is_quoted_once(
    kind: CrashKind, tail: tuple[str, ...], shown: str
) -> None:
    stack = "Traceback\n  File\nKeyError: 1\n"
    last = crash(kind=kind, stderr_tail=tail, stack=stack)
    error = PoolBrokenError(reason="why", crashes=(last,), retry_after=None)
    assert str(error).splitlines()[-1] == shown
    assert str(error).count("KeyError: 1") == ("KeyError" in f"{tail}{shown}")


def test_a_remote_traceback_prints_as_a_block() -> None:
    assert (
        str(RemoteTraceback("Traceback\n  line\n\n"))
        == "\n\n    Traceback\n      line\n"
    )
