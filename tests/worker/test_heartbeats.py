"""Heartbeats, as a worker's jobs send them: on the page, by rings, ahead of outcomes."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, NoReturn, cast

import pytest

from asyncpool import (
    JobCancelled,
    JobNotPicklableError,
    JobRaisedError,
    heartbeat,
)
from asyncpool._core.pickling.errors import load_error
from asyncpool._core.wire.context import PLAIN
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._core.wire.heartbeat_records import (
    INTERVAL,
    MAX_DETAILS,
    Beat,
    read,
    unpack,
)
from asyncpool._core.wire.messages import pack_numbers
from asyncpool._core.wire.page import BEATS_START, BEGUN, PAGE_SIZE, STACKS_START
from asyncpool._system.signals import INTERRUPT
from asyncpool._worker.api.context import running
from asyncpool._worker.job import heartbeats as module
from asyncpool._worker.job.heartbeats import HeartbeatWriter, install
from asyncpool._worker.job_ending.interrupts import Interrupts
from tests.helpers.jobs import pass_by
from tests.worker.by_hand import Door, Worker, encode

NOTHING = Frame(FrameKind.JOB, 7, 2, 0, b"")


class NoInterrupts:
    """Nobody wants any job to end."""

    running: int | None = 1

    def check(self) -> None:
        pass


class Stage:
    """Beats in this process, as of attempt 2 at job 7."""

    def __init__(self) -> None:
        self.page = mmap.mmap(-1, STACKS_START)
        BEGUN.pack_into(self.page, 0, 7, 2)
        self.interrupts = NoInterrupts()
        self.rings = 0
        self.on_ring: Callable[[], None] = lambda: None
        self.beats = HeartbeatWriter(
            self.page, cast("Interrupts", self.interrupts), self._ring
        )

    def found(self) -> list[Any]:
        return [pickle.loads(beat.details) for beat in self.read()]

    def read(self) -> list[Beat]:
        return read(self.page, BEATS_START)

    def _ring(self) -> None:
        self.rings += 1
        self.on_ring()


@pytest.fixture
def stage() -> Iterator[Stage]:
    found = Stage()
    install(found.beats)
    yield found
    module._installed = None
    found.page.close()


# By themselves.


def test_outside_a_worker_there_is_nobody_to_tell() -> None:
    with pytest.raises(RuntimeError) as caught:
        heartbeat()
    assert str(caught.value) == "heartbeat() was called outside a job of a pool"


def test_a_beat_says_whose_it_is_and_when_it_was(stage: Stage) -> None:
    before = time.monotonic()
    heartbeat({"page": 3})
    after = time.monotonic()
    [beat] = stage.read()
    assert (beat.number, beat.job, beat.attempt) == (1, 7, 2)
    assert before <= beat.at <= after
    assert pickle.loads(beat.details) == {"page": 3}
    heartbeat()
    assert stage.found() == [{"page": 3}, None]


def test_between_jobs_nothing_beats(stage: Stage) -> None:
    stage.interrupts.running = None
    with pytest.raises(RuntimeError) as caught:
        heartbeat()
    assert str(caught.value) == "heartbeat() was called when no job was running"
    assert stage.read() == []


def test_the_first_beat_of_each_job_rings(stage: Stage) -> None:
    for number in range(1, 4):
        BEGUN.pack_into(stage.page, 0, number, 1)
        heartbeat(number)
        assert stage.rings == number
        heartbeat(-number)
    assert stage.rings == 3
    assert stage.found() == [3, -3]


def test_others_ring_once_in_an_interval(stage: Stage) -> None:
    heartbeat()
    stage.beats._rung_at -= INTERVAL
    heartbeat()
    assert stage.rings == 2
    stage.beats._rung_at -= INTERVAL / 2
    heartbeat()
    assert stage.rings == 2


def test_the_newest_beat_goes_ahead_of_its_own_jobs_outcome(stage: Stage) -> None:
    heartbeat(1)
    heartbeat(2)
    words = stage.beats.last_heartbeat(NOTHING)
    beat = unpack(words, len(words) - len(stage.read()[-1].pack()))
    assert beat == stage.read()[-1]
    assert words == encode(FrameKind.LAST_HEARTBEAT, beat.pack(), 7, 2)
    assert stage.beats.latest is None
    heartbeat(3)
    assert stage.beats.last_heartbeat(NOTHING._replace(attempt=3)) == b""
    assert stage.beats.latest is None


def test_a_copy_of_the_worker_is_mute(stage: Stage) -> None:
    heartbeat("the worker")
    stage.beats.mute = True
    heartbeat("a copy")
    assert (stage.found(), stage.rings) == (["the worker"], 1)


def test_details_that_are_too_large_are_refused(stage: Stage) -> None:
    most = MAX_DETAILS - len(pickle.dumps(b"x" * 20_000, 5)) + 20_000
    heartbeat(b"x" * most)
    assert stage.found() == [b"x" * most]
    with pytest.raises(ValueError, match="details") as caught:
        heartbeat(b"x" * (most + 1))
    assert str(caught.value) == (
        "the details of a heartbeat have 32729 bytes when pickled, and 32728 is the "
        "most: say how far the job is, and put its results elsewhere, for example into a "
        "file"
    )
    assert stage.found() == [b"x" * most]


def test_details_that_cannot_be_pickled_are_refused(stage: Stage) -> None:
    with pytest.raises(JobNotPicklableError) as caught:
        heartbeat(threading.Lock())
    assert (caught.value.direction, caught.value.name) == ("details", "lock")
    assert str(caught.value) == (
        "the details of a heartbeat cannot be pickled: TypeError: cannot pickle "
        "'_thread.lock' object"
    )
    assert (stage.read(), stage.rings) == ([], 0)


def test_what_cannot_be_found_by_name_travels_by_value(stage: Stage) -> None:
    heartbeat(lambda: 5)
    [function] = stage.found()
    assert function() == 5


def test_a_beat_in_the_middle_of_another_one_waits_for_nothing(stage: Stage) -> None:
    # As in a signal handler.
    stage.on_ring = lambda: stage.beats.beat("inner") if stage.rings == 1 else None
    heartbeat("outer")
    assert sorted(stage.found()) == ["inner", "outer"]


def test_a_thread_that_has_outlived_its_job_does_not_beat_for_the_next(
    stage: Stage,
) -> None:
    errors: list[str] = []

    def beat() -> None:
        try:
            heartbeat("late")
        except RuntimeError as error:
            errors.append(str(error))

    def of_job(number: int) -> Context:
        context = copy_context()
        context.run(running.set, (number, 2, PLAIN, 0.0, None))
        return context

    for run in (of_job(6).run, of_job(7).run, Context().run):
        thread = threading.Thread(target=run, args=(beat,))
        thread.start()
        thread.join()
    assert errors == ["heartbeat() was called for job 6, which is over"]
    assert stage.found() == ["late", "late"]


# In a worker.


def count(start: int, stop: int) -> float:
    """Beat that often; return how long it took."""
    began = time.monotonic()
    for number in range(start, stop):
        heartbeat(number)
    return time.monotonic() - began


def beat_and_fail() -> NoReturn:
    heartbeat("far")
    raise LookupError("gone")


def beat_in_thread() -> None:
    thread = threading.Thread(target=heartbeat, args=("from a thread",))
    thread.start()
    thread.join()


def beat_in_copy() -> int:
    heartbeat("the worker")
    pid = os.fork()
    if pid == 0:
        heartbeat("a copy")
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def beat_deaf(door: str) -> None:
    """Beat for ever, and hear no signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [INTERRUPT])
    heartbeat()  # there is one, however soon it is interrupted
    pass_by(door, "deaf")
    while True:
        heartbeat()


def clean_up_deaf(door: str) -> str:
    """Beat until interrupted, and while cleaning up."""
    with suppress(JobCancelled):
        beat_deaf(door)
    heartbeat("cleaning up")
    return "cleaned up"


def initialize() -> None:
    try:
        heartbeat()
    except RuntimeError as error:
        raise LookupError(str(error)) from None


def on_page(worker: Worker) -> list[Beat]:
    return read(os.pread(worker.page, PAGE_SIZE, 0), BEATS_START)


def details_of(frame: Frame | None) -> tuple[int, int, Any]:
    """Check that *frame* has a job's last beat."""
    assert frame is not None
    assert frame.kind is FrameKind.LAST_HEARTBEAT
    beat = unpack(frame.payload)
    assert beat is not None
    assert (beat.job, beat.attempt) == (frame.job, frame.attempt)
    return beat.job, beat.attempt, pickle.loads(beat.details)


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


def test_a_million_beats_are_few_rings_and_one_frame(worker: Worker) -> None:
    worker.send(1, count, 0, 1_000_000)
    assert details_of(worker.heard(worker.jobs)) == (1, 1, 999_999)
    _, seconds = worker.result()
    assert 1 <= rings(worker) <= seconds / INTERVAL + 1
    assert [pickle.loads(beat.details) for beat in on_page(worker)] == [
        999_998,
        999_999,
    ]


def test_a_job_that_fails_has_said_how_far_it_was(worker: Worker) -> None:
    worker.send(1, beat_and_fail)
    assert details_of(worker.heard(worker.jobs)) == (1, 1, "far")
    _, error = worker.error()
    assert type(error) is LookupError


def test_only_who_beats_sends_anything(worker: Worker) -> None:
    worker.send(1, count, 0, 1)
    worker.send(2, count, 0, 0)
    details_of(worker.heard(worker.jobs))
    assert worker.result()[0] == 1
    assert worker.result()[0] == 2
    assert rings(worker) == 1


def test_a_thread_of_the_job_may_beat(worker: Worker) -> None:
    worker.send(1, beat_in_thread)
    assert details_of(worker.heard(worker.jobs)) == (1, 1, "from a thread")
    assert worker.result() == (1, None)


def test_a_copy_of_the_worker_says_nothing(worker: Worker) -> None:
    worker.send(1, beat_in_copy)
    assert details_of(worker.heard(worker.jobs)) == (1, 1, "the worker")
    assert worker.result() == (1, 0)
    assert [pickle.loads(beat.details) for beat in on_page(worker)] == ["the worker"]
    assert rings(worker) == 1


def test_no_beat_waits_for_a_pool_that_does_not_read(worker: Worker) -> None:
    for job in range(1, 3001):
        worker.send(job, count, job, job + 1)
        assert details_of(worker.heard(worker.jobs)) == (job, 1, job)
        worker.result()
    assert 0 < rings(worker) < 3000, "those that the socket has no room for are lost"


@pytest.mark.parametrize("work", [beat_deaf, clean_up_deaf])
def test_a_job_that_hears_no_signal_ends_at_its_next_beat(
    worker: Worker, door: Door, work: Callable[[str], Any]
) -> None:
    worker.send(1, work, door.path)
    assert door.visitor() == "deaf"
    worker.control.sendall(encode(FrameKind.INTERRUPT, pack_numbers([1])))
    if work is beat_deaf:
        assert details_of(worker.heard(worker.jobs)) == (1, 1, None)
        frame = worker.heard(worker.jobs)
        assert frame is not None
        assert frame.kind is FrameKind.ERROR
        error = load_error(frame.payload)
        assert isinstance(error, JobRaisedError)
        assert type(error.exception) is JobCancelled
    else:
        assert details_of(worker.heard(worker.jobs)) == (1, 1, "cleaning up")
        assert worker.result() == (1, "cleaned up")


def test_an_initializer_is_no_job(hire: Callable[..., Worker]) -> None:
    worker = hire(initialize)
    frame = worker.heard(worker.control)
    assert frame is not None
    assert frame.kind is FrameKind.FAILED
    assert b"heartbeat() was called when no job was running" in frame.payload
