"""The contract of turns: each place goes to exactly one of two threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, strategies as st

from asyncpool._worker.job_ending.job_claims import JobClaims
from tests.helpers.patience import PATIENCE

# Take the next place, or revoke some.
STEPS = st.lists(st.none() | st.lists(st.integers(1, 20), unique=True), max_size=40)


def test_what_nobody_revokes_begins() -> None:
    claims = JobClaims()
    assert [claims.claim() for _ in range(3)] == [True, True, True]


def test_a_place_is_revoked_before_its_turn_and_not_after() -> None:
    claims = JobClaims()
    assert claims.claim()
    assert claims.revoke([1]) == []
    assert claims.revoke([2, 1, 4]) == [2, 4]
    assert [claims.claim() for _ in range(4)] == [False, True, False, True]
    assert claims.revoke([5, 4, 3, 2, 1]) == []
    assert claims.revoke([]) == []


@given(steps=STEPS)
def test_each_place_goes_to_exactly_one_side(steps: list[list[int] | None]) -> None:
    claims = JobClaims()
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


class Duels:
    """For each place in its turn, one thread takes it and another one revokes it."""

    COUNT = 2000

    def __init__(self) -> None:
        self.begun: list[bool] = []
        self.revoked: list[bool] = []
        self._claims = JobClaims()
        self._start = threading.Barrier(2, timeout=PATIENCE)

    def take(self) -> None:
        for _ in range(self.COUNT):
            # Whoever comes last is the first to go on, and the next time it is not.
            self._start.wait()
            self.begun.append(self._claims.claim())

    def revoke(self) -> None:
        for sequence in range(1, self.COUNT + 1):
            self._start.wait()
            self.revoked.append(
                self._claims.revoke(self._slowly(sequence)) == [sequence]
            )

    def _slowly(self, sequence: int) -> Iterator[int]:
        yield sequence
        time.sleep(0)  # let the other thread try in the middle of the answer


def test_two_threads_never_both_win_a_place() -> None:
    duels = Duels()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            for side in [threads.submit(duels.take), threads.submit(duels.revoke)]:
                side.result()
    finally:
        sys.setswitchinterval(interval)
    assert duels.begun == [not revoked for revoked in duels.revoked]
    assert len(duels.begun) == duels.COUNT
    assert set(duels.begun) == {True, False}
