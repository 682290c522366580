"""What a worker may say of the jobs that it has in hand; their order is in the models."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from asyncpool._core.dispatcher import InFlight
from asyncpool._core.functions import LEAST_COST, LOADING_TRAITS, JobTraits
from asyncpool.errors import ProtocolError


def known(cost: float) -> JobTraits:
    traits = JobTraits()
    traits.cost = cost
    return traits


def flight_of(*jobs: int, width: int = 1) -> InFlight:
    """Return a flight of *jobs*, which come in the places 1, 2, 3 and so on."""
    in_flight = InFlight(width)
    for job in jobs:
        in_flight.add(job, known(10.0))
    return in_flight


@pytest.mark.parametrize(
    ("width", "asked", "expected"),
    [
        (1, [], [7]),
        (1, [7], [7, 8]),
        (1, [8], [7]),
        (1, [7, 8], [7, 8, 9]),
        (2, [], [7, 8]),
        (2, [8], [7, 8, 9]),
        (3, [7, 9], [7, 8, 9, 10]),
    ],
)
def test_outcomes_come_of_the_first_or_of_those_behind_what_is_given_back(
    width: int, asked: list[int], expected: list[int]
) -> None:
    for job in range(6, 12):
        in_flight = flight_of(7, 8, 9, 10, width=width)
        in_flight.begin_revoke(asked)
        if job in expected:
            in_flight.complete(job)
            assert job not in in_flight.jobs
            continue
        with pytest.raises(ProtocolError) as caught:
            in_flight.complete(job)
        assert str(caught.value) == (
            f"it sent an outcome of job {job}, whose turn it is not"
        )
        assert list(in_flight.jobs) == [7, 8, 9, 10]


@pytest.mark.parametrize("sent", [True, False])
def test_nothing_of_rounding_is_left_when_nothing_is_in_hand(*, sent: bool) -> None:
    in_flight = InFlight()
    in_flight.add(1, known(1e9))
    in_flight.add(2, known(8.1))
    in_flight.complete(1)
    assert in_flight.backlog != 8.1
    if sent:
        in_flight.complete(2)
    else:
        in_flight.withdraw(2)
    assert in_flight.backlog == 0.0


def test_nothing_is_sent_behind_what_is_loading() -> None:
    in_flight = flight_of(1, width=3)
    in_flight.add(2, LOADING_TRAITS)
    assert (in_flight.blocked, in_flight.free_lanes) == (True, 0)
    assert not in_flight.takes(known(LEAST_COST))
    in_flight.withdraw(2)
    assert (in_flight.blocked, in_flight.free_lanes) == (False, 2)


@pytest.mark.parametrize(
    ("won", "place"),
    [
        ([1], 1),  # not asked for
        ([2, 4], 4),  # asked for, but in the next question
        ([5], 5),  # never sent
        ([0], 0),
        ([3], 3),  # it has sent this one's outcome
        ([2, 3], 3),
        ([9, 1], 1),  # of several, the first
    ],
)
def test_what_cannot_be_given_back(won: Sequence[int], place: int) -> None:
    in_flight = flight_of(6, 7, 8, 9)
    in_flight.complete(6)
    in_flight.begin_revoke([7, 8])
    in_flight.begin_revoke([9])
    in_flight.remove(8)
    with pytest.raises(ProtocolError) as caught:
        in_flight.end_revoke(won)
    assert (
        str(caught.value)
        == f"it gave back the job with sequence number {place}, which nobody has asked back"
    )
    assert list(in_flight.jobs) == [7, 9], "none of them is taken back"
