"""The contract of fences: a job that runs when its lease lapses costs its process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NoReturn

import pytest

from asyncpool._worker.job_ending.job_claims import JobClaims
from asyncpool._worker.job_ending.lease_fences import LeaseFences
from tests.helpers.patience import PATIENCE

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
        self.claims = JobClaims()
        self.fences = LeaseFences(self.claims, self.running.__contains__, self.end)

    def end(self) -> NoReturn:
        self.ended.set()
        raise EndError

    def take(self) -> None:
        assert self.claims.claim()
        self.running = {self.claims.taken}

    def close(self) -> None:
        """Have the thread end."""
        self.running.clear()
        self.running.add(0)
        self.fences.put(0, PAST)
        assert self.ended.wait(PATIENCE)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_job_that_runs_when_its_lease_has_lapsed_ends_its_process(desk: Desk) -> None:
    desk.running.add(1)
    desk.fences.put(1, PAST)
    assert desk.ended.wait(PATIENCE)


def test_it_is_found_when_the_time_comes(desk: Desk) -> None:
    desk.running.add(1)
    desk.fences.put(1, time.monotonic() + 0.2)
    assert desk.ended.wait(PATIENCE)


def test_what_is_said_last_counts(desk: Desk) -> None:
    desk.running.add(1)
    desk.fences.put(1, time.monotonic() + FAR)
    desk.fences.put(1, time.monotonic() + 0.1)
    assert desk.ended.wait(PATIENCE)


def test_a_job_that_comes_too_late_does_not_begin(desk: Desk) -> None:
    desk.fences.put(1, PAST)
    desk.fences.check(2)
    assert not desk.ended.is_set()
    with pytest.raises(EndError):
        desk.fences.check(1)
    desk.close()


def test_a_job_that_has_time_begins(desk: Desk) -> None:
    desk.fences.put(1, time.monotonic() + FAR)
    desk.fences.check(1)
    assert not desk.ended.is_set()
    desk.close()


def test_those_that_are_over_are_forgotten_and_those_to_come_are_not(
    desk: Desk,
) -> None:
    now = time.monotonic()
    for sequence in range(1, 6):
        desk.fences.put(sequence, now + sequence * FAR)
    for _ in range(3):
        assert desk.claims.claim()
    desk.running.add(1)
    # One runs on beside others, two is over, and whether three has begun is not known.
    assert desk.fences._look() <= FAR
    assert set(desk.fences._until) == {1, 3, 4, 5}
    desk.running.clear()
    desk.fences._look()
    assert set(desk.fences._until) == {3, 4, 5}
    desk.close()


def test_a_watch_that_fails_ends_the_process() -> None:
    def fail(_place: int) -> bool:
        raise MemoryError

    ended = threading.Event()

    def end() -> NoReturn:
        ended.set()
        raise EndError

    runs: Callable[[int], bool] = fail
    LeaseFences(JobClaims(), runs, end).put(1, PAST)
    assert ended.wait(PATIENCE)
