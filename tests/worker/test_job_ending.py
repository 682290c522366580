"""How jobs end in a worker that they did not end by themselves: each at its own place and in no other."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, NoReturn

import pytest
from hypothesis import given, strategies as st

from asyncpool._wire.messages import PLAIN
from asyncpool._wire.posix import INTERRUPT_SIGNAL
from asyncpool._worker.api import current
from asyncpool._worker.channels import EndRequests
from asyncpool._worker.runner import load_hook
from asyncpool._worker.stacks import start_thread
from asyncpool.errors import HookError, JobCancelled
from tests.helpers.patience import PATIENCE

# Take the next place, or revoke some.
STEPS = st.lists(st.none() | st.lists(st.integers(1, 20), unique=True), max_size=40)


@given(steps=STEPS)
def test_each_place_goes_to_exactly_one_side(steps: list[list[int] | None]) -> None:
    claims = EndRequests(set[int]().__contains__, sys.exit)
    begun: set[int] = set()
    revoked: set[int] = set()
    taken = 0
    for sequences in steps:
        if sequences is None:
            taken += 1
            if claims.claim():
                begun.add(taken)
        else:
            won = claims.revoke(sequences)
            # The answer is in the order of the question, and says all and no more.
            assert won == [sequence for sequence in sequences if sequence > taken]
            revoked.update(won)
        assert begun.isdisjoint(revoked)
        assert begun | {sequence for sequence in revoked if sequence <= taken} == set(
            range(1, taken + 1)
        )
        # What is over is not kept.
        assert claims._revoked == {sequence for sequence in revoked if sequence > taken}


# An exception from outside: in the job that is meant, or nowhere.


@pytest.fixture
def interrupts() -> EndRequests:
    return EndRequests(set[int]().__contains__, sys.exit)


def ask(interrupts: EndRequests, sequence: int) -> None:
    """Ask from another thread, and let what comes of it come."""
    thread = threading.Thread(target=interrupts.request, args=(sequence,))
    thread.start()
    thread.join()
    time.sleep(0)  # a signal is handled between two bytecodes


def test_what_runs_is_interrupted_once(interrupts: EndRequests) -> None:
    interrupts.begin(3)
    with pytest.raises(JobCancelled):
        ask(interrupts, 3)
    signal.raise_signal(INTERRUPT_SIGNAL)
    interrupts.begin(3)


def test_what_is_over_is_not(interrupts: EndRequests) -> None:
    interrupts.begin(3)
    interrupts.interruptible = None
    ask(interrupts, 3)
    interrupts.begin(4)
    ask(interrupts, 3)
    signal.raise_signal(INTERRUPT_SIGNAL)
    with pytest.raises(JobCancelled):
        ask(interrupts, 4)


def test_what_has_not_begun_does_not(interrupts: EndRequests) -> None:
    interrupts.begin(3)
    interrupts.interruptible = None
    ask(interrupts, 4)
    with pytest.raises(JobCancelled):
        interrupts.begin(4)


# A job that runs when its lease lapses costs its process.


PAST, FAR = 1.0, 3600.0


class EndError(SystemExit):
    """What ends the thread, in place of its process."""


class Desk:
    """Fences, and what they ask.

    Attributes:
        running: The places of the jobs that run.
        ended: Set when the process would have ended.
    """

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.ended = threading.Event()
        self.fences = EndRequests(self.running.__contains__, self.end)

    def end(self) -> NoReturn:
        self.ended.set()
        raise EndError

    def close(self) -> None:
        """Have the thread end."""
        self.running.clear()
        self.running.add(0)
        self.fences.fence(0, PAST)
        assert self.ended.wait(PATIENCE)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_job_that_comes_too_late_does_not_begin(desk: Desk) -> None:
    desk.fences.fence(1, PAST)
    desk.fences.begin(2)
    assert not desk.ended.is_set()
    with pytest.raises(EndError):
        desk.fences.begin(1)
    desk.close()


def test_those_that_are_over_are_forgotten_and_those_to_come_are_not(
    desk: Desk,
) -> None:
    now = time.monotonic()
    for sequence in range(1, 6):
        desk.fences.fence(sequence, now + sequence * FAR)
    for _ in range(3):
        assert desk.fences.claim()
    desk.running.add(1)
    # One runs on beside others, two is over, and whether three has begun is not known.
    assert desk.fences._look() <= FAR
    assert set(desk.fences._leases) == {1, 3, 4, 5}
    desk.running.clear()
    desk.fences._look()
    assert set(desk.fences._leases) == {3, 4, 5}
    desk.close()


def test_a_watch_that_fails_ends_the_process() -> None:
    def fail(_place: int) -> bool:
        raise MemoryError

    ended = threading.Event()

    def end() -> NoReturn:
        ended.set()
        raise EndError

    runs: Callable[[int], bool] = fail
    EndRequests(runs, end).fence(1, PAST)
    assert ended.wait(PATIENCE)


def test_a_thread_runs_when_start_thread_returns(tmp_path: Path) -> None:
    before = len(sys._current_frames())
    ended = threading.Event()
    try:
        for number in range(1, 21):
            start_thread(ended.wait)
            # A thread that does not run yet has no frame.
            assert len(sys._current_frames()) == before + number
            with (tmp_path / "stacks").open("w+") as stacks:
                faulthandler.dump_traceback(stacks)
                stacks.seek(0)
                assert (
                    "in test_a_thread_runs_when_start_thread_returns" in stacks.read()
                )
    finally:
        ended.set()


# A hook around jobs.


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    mark, before = (
        current.set((7, 1, PLAIN, 0.0, "shop.work")),
        signal.getsignal(INTERRUPT_SIGNAL),
    )
    yield
    current.reset(mark)
    signal.signal(INTERRUPT_SIGNAL, before)


class Manager:
    """Notes how it is left, and fails then."""

    ends: ClassVar[list[object]] = []

    def __init__(self, job: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.ends.append(error)
        raise LookupError


def test_a_hook_that_fails_at_its_end_is_not_left_again() -> None:
    leave = load_hook(f"{__name__}:Manager", b"")()
    with pytest.raises(HookError):
        leave(None)
    leave(LookupError())
    assert Manager.ends == [None]
