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
    stderr_tail=("one", "two"),
    next_step=NextStep.RESTART,
    next_start=0.0,
)
NO_PROCESS = dataclasses.replace(
    CRASH,
    pid=None,
    signal=None,
    kind=CrashKind.FAILED_START,
    job_id=None,
    attempt=0,
    detail="too many open files",
    stderr_tail=(),
)
OUT_OF_MEMORY = dataclasses.replace(
    CRASH, signal="SIGKILL", kind=CrashKind.OUT_OF_MEMORY, stderr_tail=()
)
HUNG = dataclasses.replace(OUT_OF_MEMORY, kind=CrashKind.HUNG, detail="silent for 5 s")

TWO = "\n    one\n    two"

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
    PoolBrokenError(reason="no hope", crashes=(), retry_after=None): (
        "the pool is broken: no hope"
    ),
    PoolBrokenError(reason="no hope", crashes=(NO_PROCESS, CRASH), retry_after=30.0): (
        "the pool is broken: no hope; last: worker 4242 in slot 2 was killed by "
        f"SIGSEGV during attempt 1 of job 17{TWO}"
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
    ResizeError(dataclasses.replace(CRASH, job_id=None)): (
        "there are not as many workers yet: worker 4242 in slot 2 was killed by SIGSEGV"
        f"{TWO}"
    ),
    LeaseLostError(): "the lease is gone",
    LeaseLostError("message 7 has another owner"): "message 7 has another owner",
    ThrottledError(): "the outside system asks for fewer renewals",
    ThrottledError("429", retry_after=2.5): "429",
    JobTimeoutError(job_id=17, attempt=2, limit=TimeLimit.TIMEOUT, seconds=2.5): (
        "job 17 ran longer than its timeout of 2.5 s, in attempt 2"
    ),
    JobTimeoutError(
        job_id=17,
        attempt=1,
        limit=TimeLimit.TIMEOUT,
        seconds=2.5,
        stack="a\n  b\n  c\n  d\n  e",
    ): (
        "job 17 ran longer than its timeout of 2.5 s, in attempt 1"
        "\n    a\n      b\n      c\n      d"
    ),
    JobTimeoutError(
        job_id=17, attempt=0, limit=TimeLimit.QUEUE_TIMEOUT, seconds=60.0
    ): ("job 17 waited longer than its queue_timeout of 60 s, in the queue"),
    JobTimeoutError(
        job_id=17, attempt=1, limit=TimeLimit.TIMEOUT, seconds=1.0, function="app.work"
    ): "job 17 (app.work) ran longer than its timeout of 1 s, in attempt 1",
    WorkerCrashedError(
        job_id=17,
        crashes=(
            dataclasses.replace(
                CRASH, function="app.work", concurrent_jobs=(18,), stderr_tail=()
            ),
        ),
        delivery=Delivery.STARTED,
        function="app.work",
    ): (
        "worker 4242 in slot 2 was killed by SIGSEGV during attempt 1 of job 17 "
        "(app.work), beside which it ran job 18; the job had started"
    ),
    WorkerCrashedError(
        job_id=17,
        crashes=(dataclasses.replace(CRASH, other_jobs=1, stderr_tail=()),),
        delivery=Delivery.STARTED,
    ): (
        "worker 4242 in slot 2 was killed by SIGSEGV during attempt 1 of job 17, "
        "beside which it ran 1 other job; the job had started"
    ),
    WorkerCrashedError(
        job_id=17,
        crashes=(
            dataclasses.replace(
                CRASH, concurrent_jobs=(18, 19), other_jobs=2, stderr_tail=()
            ),
        ),
        delivery=Delivery.STARTED,
    ): (
        "worker 4242 in slot 2 was killed by SIGSEGV during attempt 1 of job 17, "
        "beside which it ran jobs 18 and 19, and 2 other jobs; the job had started"
    ),
    WorkerCrashedError(
        job_id=17,
        crashes=(
            dataclasses.replace(
                CRASH, job_id=None, attempt=0, other_jobs=2, stderr_tail=()
            ),
        ),
        delivery=Delivery.SENT,
    ): (
        "worker 4242 in slot 2 was killed by SIGSEGV while it ran 2 other jobs; "
        "job 17 had been sent but not started"
    ),
    WorkerStartError(
        job_id=17,
        crashes=(NO_PROCESS,),
        delivery=Delivery.NEVER_SENT,
        function="app.work",
    ): (
        "a worker in slot 2 could not be started: too many open files; "
        "job 17 (app.work) had not been sent"
    ),
    PoolFullError(waiting=1, max_queued=1): (
        "1 job is waiting and max_queued is 1: "
        "shed load, or try again when some have finished"
    ),
    JobTimeoutError(job_id=17, attempt=0, limit=TimeLimit.DEADLINE, seconds=1234.5): (
        "job 17 missed its deadline, in the queue"
    ),
    JobTimeoutError(job_id=17, attempt=3, limit=TimeLimit.DEADLINE, seconds=1234.5): (
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
    WorkerCrashedError(job_id=17, crashes=(CRASH,), delivery=Delivery.STARTED): (
        "worker 4242 in slot 2 was killed by SIGSEGV during attempt 1 of job 17; "
        f"the job had started{TWO}"
    ),
    WorkerStartError(job_id=17, crashes=(NO_PROCESS,), delivery=Delivery.NEVER_SENT): (
        "a worker in slot 2 could not be started: too many open files; "
        "job 17 had not been sent"
    ),
    WorkerHungError(job_id=17, crashes=(CRASH, HUNG), delivery=Delivery.SENT): (
        "worker 4242 in slot 2 was killed by SIGKILL (hung): silent for 5 s during "
        "attempt 1 of job 17; the job had been sent but not started"
    ),
    WorkerOutOfMemoryError(
        job_id=17, crashes=(OUT_OF_MEMORY,), delivery=Delivery.STARTED
    ): (
        "worker 4242 in slot 2 was killed by SIGKILL (out of memory) during attempt "
        "1 of job 17; the job had started"
    ),
    NodeLostError(
        job_id=17,
        crashes=(OUT_OF_MEMORY,),
        delivery=Delivery.STARTED,
        node="models@4711",
        silence=0.5,
    ): (
        "agent models@4711 is gone, or has given this client up; it was heard last 0.5 s before; "
        "job 17 had started"
    ),
    NodeLostError(
        job_id=17,
        crashes=(OUT_OF_MEMORY,),
        delivery=Delivery.STARTED,
        node="models@4711",
        silence=0.0,
        own_silence=61.25,
    ): (
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
    error = WorkerHungError(job_id=17, crashes=(CRASH, HUNG), delivery=Delivery.STARTED)
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
    crash = dataclasses.replace(CRASH, **changes)
    assert crash.how == how
    assert how in str(crash)


@pytest.mark.parametrize(
    ("crashes", "attempt"),
    [
        ((CRASH,), 1),
        ((dataclasses.replace(CRASH, job_id=18, attempt=3),), 0),
        ((CRASH, dataclasses.replace(CRASH, job_id=18, attempt=3)), 1),
        ((dataclasses.replace(CRASH, job_id=None, attempt=0),), 0),
    ],
    ids=["its own", "another job's", "first its own", "nobody's"],
)
def test_the_attempt_of_a_crash_error_is_its_jobs(
    crashes: tuple[Crash, ...], attempt: int
) -> None:
    error = WorkerCrashedError(job_id=17, crashes=crashes, delivery=Delivery.SENT)
    assert error.attempt == attempt


def test_a_long_stderr_is_quoted_from_its_end() -> None:
    tail = tuple(f"line {number}" for number in range(9))
    crash = dataclasses.replace(CRASH, stderr_tail=tail)
    error = WorkerCrashedError(job_id=17, crashes=(crash,), delivery=Delivery.STARTED)
    assert str(error).splitlines()[1:] == [f"    {line}" for line in tail[-5:]]
    assert error.stderr_tail == tail


def test_of_a_fatal_error_the_innermost_calls_are_quoted() -> None:
    tail = (
        "some output",
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x0 (most recent call first):",
        '  File "a.py", line 1 in crash',
        '  File "a.py", line 2 in job',
        '  File "a.py", line 3 in execute',
        '  File "a.py", line 4 in serve',
    )
    crash = dataclasses.replace(CRASH, stderr_tail=tail)
    error = WorkerCrashedError(job_id=17, crashes=(crash,), delivery=Delivery.STARTED)
    assert str(error).splitlines()[1:] == [
        f"    {line}" for line in (tail[1], *tail[3:7])
    ]


C_STACK = "Current thread's C stack trace (most recent call first):"


def test_of_a_fatal_error_in_a_library_its_frames_are_quoted_too() -> None:
    tail = (
        "Fatal Python error: Segmentation fault",
        "",
        "Thread 0x1 [Thread-1] (most recent call first):",
        '  File "other.py", line 1 in wait',
        "",
        "Current thread 0x0 [python] (most recent call first):",
        '  File "a.py", line 1 in crash',
        "",
        C_STACK,
        '  Binary file "/bin/python", at _Py_DumpStack+0x4a [0x4]',
        '  Binary file "/bin/python" [0x5]',
        '  Binary file "/lib/libc.so.6", at +0x406b0 [0x6]',
        '  Binary file "/lib/libc.so.6", at +0x16a499 [0x7]',
        '  Binary file "/lib/python3/_guilty.so", at inner+0x1 [0x8]',
        '  Binary file "/lib/python3/_guilty.so", at outer+0x1 [0x9]',
        '  Binary file "/bin/python" [0xa]',
        '  Binary file "/bin/python", at PyEval_EvalCode+0x9d [0xb]',
        '  Binary file "/lib/libc.so.6", at __libc_start_main+0x87 [0xc]',
        '  Binary file "/bin/python", at _start+0x21 [0xd]',
    )
    crash = dataclasses.replace(CRASH, stderr_tail=tail)
    error = WorkerCrashedError(job_id=17, crashes=(crash,), delivery=Delivery.STARTED)
    assert str(error).splitlines()[1:] == [
        f"    {line}" for line in (tail[0], *tail[5:7], *tail[13:16])
    ]


def test_a_stack_of_c_without_one_of_python_is_no_stack_of_python() -> None:
    tail = ("Fatal Python error: Aborted", C_STACK, "  <cannot get C stack>")
    crash = dataclasses.replace(CRASH, stderr_tail=tail)
    error = WorkerCrashedError(job_id=17, crashes=(crash,), delivery=Delivery.STARTED)
    assert str(error).splitlines()[1:] == ["    Fatal Python error: Aborted"]


def test_a_fatal_error_without_a_stack_is_quoted_all_the_same() -> None:
    crash = dataclasses.replace(
        CRASH, stderr_tail=("Fatal Python error: Aborted", "x", "y")
    )
    error = WorkerCrashedError(job_id=17, crashes=(crash,), delivery=Delivery.STARTED)
    assert str(error).splitlines()[1:] == ["    Fatal Python error: Aborted"]


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
    crash = dataclasses.replace(
        CRASH, kind=kind, stderr_tail=tail, stack="Traceback\n  File\nKeyError: 1\n"
    )
    error = PoolBrokenError(reason="why", crashes=(crash,), retry_after=None)
    assert str(error).splitlines()[-1] == shown
    assert str(error).count("KeyError: 1") == ("KeyError" in f"{tail}{shown}")


def test_a_remote_traceback_prints_as_a_block() -> None:
    assert str(RemoteTraceback("Traceback\n  line\n\n")) == "\n\nTraceback\n  line\n"
