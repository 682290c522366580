"""The contract of a worker: what it says, and when it leaves, without any pool."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncpool._core.frames import Frame, FrameDecoder, Kind, header
from asyncpool._core.messages import Failure, WorkerConfig
from asyncpool._core.outcome import dumps, load_value, pack_job
from asyncpool._runtime.launcher import _BOOTSTRAP, _ROOT
from tests.helpers import faults, jobs
from tests.helpers.patience import PATIENCE


class Worker:
    """A worker that was started by hand, and the other ends of what it holds."""

    def __init__(self, initializer: Callable[..., object] | None = None) -> None:
        self.jobs, jobs_end = socket.socketpair()
        self.control, control_end = socket.socketpair()
        self.page = os.memfd_create("page")
        os.ftruncate(self.page, 4096)
        self._frames: dict[socket.socket, Iterator[Frame]] = {}
        with jobs_end, control_end:
            fds = [jobs_end.fileno(), control_end.fileno(), self.page]
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _BOOTSTRAP,
                    _ROOT,
                    "worker",
                    *map(str, fds),
                ],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        for sock in (self.jobs, self.control):
            sock.settimeout(PATIENCE)
        packed = None if initializer is None else dumps((initializer, ()))
        config = WorkerConfig(
            sys_path=tuple(sys.path), initializer=packed, max_payload=1 << 20
        ).pack()
        self.control.sendall(header(Kind.CONFIG, len(config)) + config)

    def send(self, job: int, function: Callable[..., object], *args: object) -> None:
        payload = pack_job(function, args, {})
        self.jobs.sendall(header(Kind.JOB, len(payload), job, 1) + payload)

    def heard(self, sock: socket.socket) -> Frame | None:
        """Wait for the next frame on *sock*; ``None`` is its end."""
        frames = self._frames.setdefault(sock, _frames(sock))
        return next(frames, None)

    def result(self) -> tuple[int, object]:
        frame = self.heard(self.jobs)
        assert frame is not None
        assert frame.kind is Kind.VALUE
        return frame.job, load_value(frame.payload)

    def noted(self) -> int:
        return int.from_bytes(os.pread(self.page, 8, 0), sys.byteorder)

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return its status and its stderr."""
        _, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, err.decode()

    def close(self) -> None:
        self.jobs.close()
        self.control.close()
        os.close(self.page)
        self.process.kill()
        self.process.communicate()


def _frames(sock: socket.socket) -> Iterator[Frame]:
    decoder = FrameDecoder(max_payload=1 << 24)
    try:
        while data := sock.recv(65_536):
            yield from decoder.feed(data)
    except ConnectionResetError:
        return


@pytest.fixture
def hire() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def hire(*args: Any) -> Worker:
        workers.append(Worker(*args))
        return workers[-1]

    yield hire
    for worker in workers:
        worker.close()


def hello(worker: Worker) -> None:
    frame = worker.heard(worker.control)
    assert frame is not None
    assert frame.kind is Kind.HELLO


def test_it_says_hello_and_answers_one_job_after_the_other(
    hire: Callable[..., Worker],
) -> None:
    worker = hire()
    hello(worker)
    assert worker.noted() == 0
    for job in range(1, 4):
        worker.send(job, jobs.square, job)
    assert [worker.result() for _ in range(3)] == [(1, 1), (2, 4), (3, 9)]
    assert worker.noted() == 3


def test_it_notes_a_job_before_it_touches_it(hire: Callable[..., Worker]) -> None:
    worker = hire()
    hello(worker)
    worker.send(77, jobs.take, faults.Trap("exit 3"))
    assert worker.heard(worker.jobs) is None
    assert worker.noted() == 77
    assert worker.ended()[0] == 3


def test_it_leaves_when_no_job_will_come(hire: Callable[..., Worker]) -> None:
    worker = hire()
    hello(worker)
    worker.send(1, jobs.square, 5)
    worker.jobs.shutdown(socket.SHUT_WR)
    assert worker.result() == (1, 25)
    assert worker.ended() == (0, "")


@pytest.mark.parametrize("busy", [faults.linger, jobs.spin], ids=["sleeps", "computes"])
def test_it_ends_with_its_pool_in_the_middle_of_a_job(
    busy: Callable[[], object], hire: Callable[..., Worker]
) -> None:
    worker = hire()
    hello(worker)
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
    assert frame.kind is Kind.FAILED
    failure = Failure.unpack(frame.payload)
    assert (failure.stage, failure.summary) == ("initializer", "LookupError: badly")
    assert "finish_badly" in failure.text
    code, err = worker.ended()
    assert code == 1
    assert err.rstrip().endswith("LookupError: badly")


def test_an_exception_in_a_thread_is_told(hire: Callable[..., Worker]) -> None:
    worker = hire()
    hello(worker)
    worker.send(1, jobs.raise_in_thread, "lost")
    assert worker.result() == (1, "lost")
    frame = worker.heard(worker.control)
    assert frame is not None
    failure = Failure.unpack(frame.payload)
    assert failure.stage == "thread"
    assert failure.summary == "LookupError in thread 'helper': lost"


def test_a_copy_of_it_says_nothing(hire: Callable[..., Worker]) -> None:
    worker = hire()
    hello(worker)
    worker.send(1, jobs.fork_quietly)
    assert worker.result()[0] == 1
    worker.send(2, jobs.square, 2)
    assert worker.result() == (2, 4)
    worker.jobs.shutdown(socket.SHUT_WR)
    assert worker.ended()[0] == 0
    # The copy has let go of the channels too, so that their end is seen.
    assert worker.heard(worker.jobs) is None


def test_what_it_prints_does_not_wait_for_a_full_buffer(
    hire: Callable[..., Worker],
) -> None:
    worker = hire()
    hello(worker)
    worker.send(1, print, "hello")
    assert worker.result() == (1, None)
    assert worker.process.stdout is not None
    assert select.select([worker.process.stdout], [], [], PATIENCE)[0]
    assert os.read(worker.process.stdout.fileno(), 100) == b"hello\n"


def test_functions_for_its_exit_are_called(hire: Callable[..., Worker]) -> None:
    worker = hire()
    hello(worker)
    worker.send(1, jobs.say_at_exit, "farewell")
    assert worker.result() == (1, None)
    worker.jobs.shutdown(socket.SHUT_WR)
    assert worker.ended() == (0, "farewell\n")
