"""The contract of a worker: what it says, and when it leaves, without any pool."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable
from functools import partial

import pytest

from asyncpool._core.wire.frames import FrameKind
from asyncpool._core.wire.messages import Failure, Identity
from asyncpool._system.descriptors import Handed
from tests.helpers import faults, jobs, sharing
from tests.helpers.patience import PATIENCE
from tests.worker.by_hand import Worker, encode


def test_it_says_hello_and_answers_one_job_after_the_other(worker: Worker) -> None:
    assert worker.noted() == 0
    for job in range(1, 4):
        worker.send(job, jobs.square, job)
    assert [worker.result() for _ in range(3)] == [(1, 1), (2, 4), (3, 9)]
    assert worker.noted() == 3


def test_it_notes_a_job_before_it_touches_it(worker: Worker) -> None:
    worker.send(77, jobs.take, faults.Trap("exit 3"))
    assert worker.heard(worker.jobs) is None
    assert worker.noted() == 77
    assert worker.ended()[0] == 3


def test_it_leaves_when_no_job_will_come(worker: Worker) -> None:
    worker.send(1, jobs.square, 5)
    worker.jobs.shutdown(socket.SHUT_WR)
    assert worker.result() == (1, 25)
    assert worker.ended() == (0, "")


@pytest.mark.parametrize("busy", [faults.linger, jobs.spin], ids=["sleeps", "computes"])
def test_it_ends_with_its_pool_in_the_middle_of_a_job(
    busy: Callable[[], object], worker: Worker
) -> None:
    worker.send(1, busy)
    worker.control.close()
    assert worker.ended() == (-signal.SIGKILL, "")


def test_it_ends_if_the_pool_is_gone_before_it_began(
    hire: Callable[..., Worker],
) -> None:
    worker = hire()
    worker.control.close()
    worker.jobs.close()
    code, _ = worker.ended()
    assert code in {0, -signal.SIGKILL}


def test_a_failing_initializer_is_told_instead_of_a_hello(
    hire: Callable[..., Worker],
) -> None:
    worker = hire(jobs.finish_badly)
    frame = worker.heard(worker.control)
    assert frame is not None
    assert frame.kind is FrameKind.FAILED
    failure = Failure.unpack(frame.payload)
    assert (failure.stage, failure.summary) == ("initializer", "LookupError: badly")
    assert "finish_badly" in failure.text
    assert worker.ended() == (1, ""), "the pool logs the traceback, in one record"


def test_a_descriptor_that_was_lost_is_told_instead_of_a_hello(
    hire: Callable[..., Worker],
) -> None:
    """It was, if the frame is there without it: this process may open no more."""
    worker = hire(Handed(0).detach, ahead=encode(FrameKind.HANDED, b""))
    frame = worker.heard(worker.control)
    assert frame is not None
    assert frame.kind is FrameKind.FAILED
    failure = Failure.unpack(frame.payload)
    assert failure.stage == "initializer"
    assert failure.summary == (
        "OSError: [Errno 24] Too many open files: a descriptor for the initializer "
        "cannot be received"
    )


def test_it_is_who_it_is_told_to_be(hire: Callable[..., Worker]) -> None:
    """However long the configuration is that comes behind that."""
    identity = Identity("images-worker-2", 3, (1, "main"), b"key", "spawn", ("a", "b"))
    ahead = encode(FrameKind.IDENTITY, identity.pack())
    worker = hire(partial(len, bytes(3 << 20)), ahead=ahead)
    worker.hello()
    worker.send(1, sharing.told)
    assert worker.result() == (
        1,
        ("images-worker-2", (3,), 1, "main", b"key", "spawn", ["a", "b"]),
    )


def test_an_exception_in_a_thread_is_told(worker: Worker) -> None:
    worker.send(1, jobs.raise_in_thread, "lost")
    assert worker.result() == (1, "lost")
    frame = worker.heard(worker.control)
    assert frame is not None
    failure = Failure.unpack(frame.payload)
    assert failure.stage == "thread"
    assert failure.summary == "LookupError in thread 'helper': lost"


def test_a_copy_of_it_says_nothing(worker: Worker) -> None:
    worker.send(1, jobs.fork_quietly)
    assert worker.result()[0] == 1
    worker.send(2, jobs.square, 2)
    assert worker.result() == (2, 4)
    worker.jobs.shutdown(socket.SHUT_WR)
    assert worker.ended()[0] == 0
    # The copy has let go of the channels too, so that their end is seen.
    assert worker.heard(worker.jobs) is None


def test_what_it_prints_does_not_wait_for_a_full_buffer(worker: Worker) -> None:
    worker.send(1, print, "hello")
    assert worker.result() == (1, None)
    assert worker.process.stdout is not None
    assert select.select([worker.process.stdout], [], [], PATIENCE)[0]
    assert os.read(worker.process.stdout.fileno(), 100) == b"hello\n"


def test_functions_for_its_exit_are_called(worker: Worker) -> None:
    worker.send(1, jobs.say_at_exit, "farewell")
    assert worker.result() == (1, None)
    worker.jobs.shutdown(socket.SHUT_WR)
    assert worker.ended() == (0, "farewell\n")
