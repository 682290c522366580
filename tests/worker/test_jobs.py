"""The contract of a worker: what it says, what it begins, and when it leaves, without any pool."""

from __future__ import annotations

import os
import pickle
import select
import signal
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from time import monotonic

import pytest

from asyncpool import heartbeat
from asyncpool.errors import JobNotPicklableError
from tests.helpers import faults, jobs, large, logs, sharing, values
from tests.helpers.large import Block, pattern
from tests.worker.by_hand import (
    MAX_DETAILS,
    Door,
    Frame,
    FrameKind,
    Handed,
    Identity,
    Worker,
    context_frame,
    encode,
    function_frame,
    job_frame,
    large_job,
    pack_numbers,
    send_segment,
)

# How it begins and ends.


def test_it_notes_a_job_before_it_touches_it(worker: Worker) -> None:
    worker.send(77, jobs.take, faults.Trap("exit 3"))
    assert worker.heard(worker.jobs) is None
    assert worker.noted() == 77
    assert worker.ended()[0] == 3


def test_it_ends_if_the_pool_is_gone_before_it_began(
    hire: Callable[..., Worker],
) -> None:
    worker = hire()
    worker.control.close()
    worker.jobs.close()
    code, _ = worker.ended()
    assert code in {0, -signal.SIGKILL}


def test_a_descriptor_that_was_lost_is_told_instead_of_a_hello(
    hire: Callable[..., Worker],
) -> None:
    """It was, if the frame is there without it: this process may open no more."""
    worker = hire(Handed(0).detach, ahead=encode(FrameKind.HANDED, b""))
    failure = worker.failure()
    assert failure.stage == "initializer"
    assert failure.summary == (
        "OSError: [Errno 24] Too many open files: a descriptor for the initializer "
        "cannot be received"
    )


def test_it_is_who_it_is_told_to_be(hire: Callable[..., Worker]) -> None:
    """However long the configuration is that comes behind that."""
    identity = Identity("images-worker-2", 3, (1, "main"), b"key", "spawn", ("a", "b"))
    ahead = encode(FrameKind.IDENTITY, pickle.dumps(identity))
    worker = hire(partial(len, bytes(3 << 20)), ahead=ahead)
    worker.hello()
    worker.send(1, sharing.told)
    assert worker.result() == (
        1,
        ("images-worker-2", (3,), 1, "main", b"key", "spawn", ["a", "b"]),
    )


# One job after the other.


def test_an_outcome_does_not_wait_for_the_next_job(worker: Worker, door: Door) -> None:
    worker.write(
        job_frame(1, jobs.square, 5),
        job_frame(2, jobs.wait_at, door.path, "second"),
        job_frame(3, jobs.square, 6),
    )
    assert door.visitor() == "second"
    # That it has begun the second says that the first's outcome has been written.
    assert select.select([worker.jobs], [], [], 0)[0]
    assert worker.result() == (1, 25)
    assert worker.noted() == 2
    assert not select.select([worker.jobs], [], [], 0)[0]
    door.release("open")
    assert worker.results(2) == [(2, "open"), (3, 36)]


def test_a_function_that_cannot_be_unpickled_costs_only_its_calls(
    worker: Worker,
) -> None:
    worker.write(
        function_frame(1, values.ExplodesThere(LookupError("there"))),
        function_frame(2, jobs.square),
        job_frame(1, jobs.square, 5, number=1),
        job_frame(2, jobs.square, 5, number=2),
        job_frame(3, jobs.square, 5, number=1),
        job_frame(4, jobs.square, 6),
    )
    for expected in (1, 3):
        job, error = worker.error()
        assert (job, type(error), error.args) == (expected, LookupError, ("there",))
        assert worker.result() == ((2, 25) if expected == 1 else (4, 36))
    assert worker.last_words() == (None, 0, "")


def test_the_257th_function_makes_a_worker_forget_the_first(worker: Worker) -> None:
    worker.write(*(function_frame(number, jobs.square) for number in range(1, 257)))
    worker.write(*(job_frame(n, jobs.square, 3, number=n) for n in (1, 256)))
    assert worker.results(2) == [(1, 9), (256, 9)]
    worker.write(
        function_frame(257, jobs.take),
        job_frame(1001, jobs.square, 3, number=1),
        *(job_frame(1000 + n, jobs.square, 3, number=n) for n in (2, 256, 257)),
    )
    job, error = worker.error()
    assert (job, type(error), error.args) == (1001, KeyError, (1,))
    assert worker.results(3) == [(1002, 9), (1256, 9), (1257, 1)]


def test_an_error_above_the_limit_is_named(hire: Callable[..., Worker]) -> None:
    worker = hire(max_payload=1024)
    worker.hello()
    worker.send(1, jobs.fail, ValueError("x" * 1000))
    job, error = worker.error()
    assert (job, type(error)) == (1, JobNotPicklableError)
    assert "the job raised ValueError, which has " in str(error)


# Revoking.


def test_revoked_jobs_never_begin_and_the_others_do(worker: Worker, door: Door) -> None:
    worker.write(
        job_frame(11, jobs.wait_at, door.path, "first"),
        *(job_frame(10 + n, jobs.pass_by, door.path, str(n)) for n in range(2, 7)),
    )
    assert door.visitor() == "first"
    assert worker.revoke(3, 2, 6) == (3, 2, 6)
    door.release()
    assert worker.results(3) == [(11, "go"), (14, None), (15, None)]
    # Whatever comes later has the place behind the last, revoked or not.
    worker.send(17, jobs.pass_by, door.path, "7")
    assert worker.result() == (17, None)
    assert door.words() == ["4", "5", "7"]
    assert worker.noted() == 17
    assert worker.last_words() == (None, 0, "")


def test_a_job_is_revoked_before_the_worker_has_read_it(
    worker: Worker, door: Door
) -> None:
    worker.send(1, jobs.wait_at, door.path, "first")
    assert door.visitor() == "first"
    frames = [job_frame(n, jobs.pass_by, door.path, str(n)) for n in range(2, 6)]
    # One is there in part, two are not even sent.
    worker.write(frames[0], frames[1][:30])
    assert worker.revoke(3, 4) == (3, 4)
    worker.write(frames[1][30:], *frames[2:])
    door.release()
    assert worker.results(3) == [(1, "go"), (2, None), (5, None)]
    assert door.words() == ["2", "5"]


# Contexts.


def test_a_context_may_be_larger_than_a_message(hire: Callable[..., Worker]) -> None:
    worker = hire(max_payload=1024)
    worker.hello()
    details = pickle.dumps(b"d" * (MAX_DETAILS - 100))
    worker.write(context_frame(details=details), job_frame(1, jobs.size_of_details))
    assert worker.result() == (1, MAX_DETAILS - 100)


# Heartbeats.


def count(start: int, stop: int) -> float:
    """Beat that often; return how long it took."""
    began = monotonic()
    for number in range(start, stop):
        heartbeat(number)
    return monotonic() - began


def rings(worker: Worker) -> int:
    """Count them up to now."""
    worker.control.sendall(encode(FrameKind.PING, b""))
    found = 0
    while (frame := worker.heard(worker.control)) is not None:
        if frame.kind is FrameKind.PONG:
            return found
        assert frame == Frame(FrameKind.HEARTBEAT, 0, 0, 0, b"")
        found += 1
    raise AssertionError("it is gone")


def test_many_beats_are_few_rings_and_one_frame(worker: Worker) -> None:
    worker.send(1, count, 0, 200_000)
    worker.send(2, count, 0, 0)
    assert worker.last_beat() == (1, 1, 199_999)
    _, seconds = worker.result()
    assert worker.result()[0] == 2, "who does not beat sends nothing"
    assert 1 <= rings(worker) <= seconds / 0.02 + 1
    beats = [pickle.loads(beat.details) for beat in worker.beats()]
    assert beats == [199_998, 199_999]


def test_no_beat_waits_for_a_pool_that_does_not_read(worker: Worker) -> None:
    for job in range(1, 3001):
        worker.send(job, count, job, job + 1)
        assert worker.last_beat() == (job, 1, job)
        worker.result()
    assert 0 < rings(worker) < 3000, "those that the socket has no room for are lost"


def beat_in_copy() -> int:
    heartbeat("the worker")
    pid = os.fork()
    if pid == 0:
        heartbeat("a copy")
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_a_copy_of_the_worker_does_not_beat(worker: Worker) -> None:
    worker.send(1, beat_in_copy)
    assert worker.last_beat() == (1, 1, "the worker")
    assert worker.result() == (1, 0)
    assert [pickle.loads(beat.details) for beat in worker.beats()] == ["the worker"]
    assert rings(worker) == 1


def beat_too_much() -> tuple[int, str, str]:
    """Beat with details that cannot be, and say why."""
    most = MAX_DETAILS - len(pickle.dumps(b"x" * 20_000, 5)) + 20_000
    heartbeat(b"x" * most)
    refused = []
    for details in (b"x" * (most + 1), threading.Lock()):
        try:
            heartbeat(details)
        except (ValueError, JobNotPicklableError) as error:
            refused.append(str(error))
    one, other = refused
    return most, one, other


def test_details_that_cannot_be_sent_are_refused(worker: Worker) -> None:
    worker.send(1, beat_too_much)
    _, _, last = worker.last_beat()
    _, (most, large, wrong) = worker.result()
    assert len(last) == most, "it stays the last one"
    assert large.startswith(
        "the details of a heartbeat have 32729 bytes when pickled, and 32728 is the most"
    )
    assert wrong == (
        "the details of a heartbeat cannot be pickled: TypeError: cannot pickle "
        "'_thread.lock' object"
    )


_late: list[threading.Thread] = []
_said: list[str] = []


def leave_beating(gate: str) -> None:
    """Leave a thread behind that beats, in the context of this job, when it is let go."""

    def beat() -> None:
        jobs.wait_at(gate, "thread")
        try:
            heartbeat("late")
        except RuntimeError as error:
            _said.append(str(error))

    _late.append(threading.Thread(target=copy_context().run, args=(beat,)))
    _late[0].start()


def join_it() -> list[str]:
    _late[0].join()
    return _said


def test_a_thread_that_has_outlived_its_job_does_not_beat_for_the_next(
    worker: Worker, door: Door
) -> None:
    worker.send(1, leave_beating, door.path)
    assert worker.result() == (1, None)
    assert door.visitor() == "thread"
    worker.send(2, join_it)
    while worker.noted() != 2:
        pass
    door.release()
    assert worker.result() == (2, ["heartbeat() was called for job 1, which is over"])


# Records of loggers.


def test_what_cannot_be_formatted_is_told_on_stderr(worker: Worker) -> None:
    worker.send(1, logs.log_badly)
    assert worker.result() == (1, "done")
    _, status, err = worker.last_words()
    assert status == 0
    assert "--- Logging error ---" in err
    assert "Message: '%d'" in err


def test_a_thread_that_outlives_its_job_belongs_to_it_if_it_says_so(
    worker: Worker,
) -> None:
    worker.send(1, logs.log_in_thread_late)
    worker.send(2, logs.let_it_log)
    found = [worker.record(), worker.record()]
    told = [(it["msg"], it["job_id"]) for it in found]
    assert told == [("by adapter", 1), ("by itself", 2)]


def test_signal_handlers_log_in_the_middle_of_a_record(worker: Worker) -> None:
    worker.send(1, logs.log_from_signals, 200)
    messages: list[str] = []
    while "the end" not in messages:
        messages.append(worker.record()["msg"])
    job, total = worker.result()
    assert (job, len(messages)) == (1, total)
    numbers = [message for message in messages if message.isdigit()]
    assert numbers == [str(number) for number in range(len(numbers))]
    assert messages.count("from a handler") >= 200


# Shared memory beside jobs.


def block(number: int) -> Block:
    return Block(pattern(70_000, number))


def lent(segment: int, *sizes: int) -> bytes:
    return encode(FrameKind.LENT, pack_numbers(sizes), tag=segment)


def returned(segment: int) -> Frame:
    return Frame(FrameKind.SEGMENT_RETURNED, 0, 0, segment, b"")


@pytest.fixture(params=[1, 3], ids=["alone", "beside others"])
def busy(hire: Callable[..., Worker], request: pytest.FixtureRequest) -> Worker:
    """A worker that runs one job at a time, or several."""
    found = hire(concurrency=request.param)
    found.hello()
    return found


def test_what_was_sent_for_a_revoked_job_is_not_for_the_next_one(
    busy: Worker, door: Door
) -> None:
    worker = busy
    worker.send(1, jobs.wait_at, door.path)
    door.visitor()
    assert worker.revoke(2) == (2,)
    door.release()
    assert worker.result() == (1, "go")
    for number in (2, 3):
        areas, job = large_job(number, large.checksum, block(number))
        worker.write(*(encode(FrameKind.AREA, area) for area in areas), job)
    assert worker.result() == (3, large.checksum(block(3)))


def test_what_was_lent_for_a_revoked_job_is_returned(busy: Worker, door: Door) -> None:
    worker = busy
    worker.send(1, jobs.wait_at, door.path)
    door.visitor()
    assert worker.revoke(2) == (2,)
    for number in (2, 3):
        [area], job = large_job(number, large.checksum, block(number))
        send_segment(worker, number + 10, area)
        worker.write(lent(number + 10, len(area)), job)
    door.release()
    assert worker.result() == (1, "go")
    told = [worker.heard(worker.jobs) for _ in range(2)]
    assert sorted(map(str, told)) == sorted(map(str, (returned(12), returned(13))))
    assert worker.result() == (3, large.checksum(block(3)))
