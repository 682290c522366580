"""How many jobs an agent may have, if there are others."""

from __future__ import annotations

import sys
from collections import deque

import pytest

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.remote.agent_window import AgentWindow

TRAITS = JobTraits()


def size(window: AgentWindow, now: float) -> int:
    """Return how many jobs of one function the agent may have."""
    window.look(now)
    return window.least + window.ahead.get(TRAITS, 0)


def test_it_begins_with_two_jobs_for_each_lane() -> None:
    assert size(AgentWindow(4), 100.0) == 8


def test_what_has_ended_just_now_comes_on_top_and_is_forgotten() -> None:
    window = AgentWindow(4)
    for _ in range(100):
        window.ended(TRAITS)
    sizes = [size(window, 10.0 + at / 10) for at in range(7)]
    assert sizes == [108, 44, 21, 12, 9, 8, 8]
    assert window.ahead == {}


def test_each_function_counts_for_itself_and_all_of_them_together() -> None:
    window, others = AgentWindow(4), [JobTraits() for _ in range(3)]
    for count, function in enumerate(others, 1):
        for _ in range(10 * count):
            window.ended(function)
    window.look(1.0)
    assert [window.ahead[function] for function in others] == [10, 20, 30]
    assert (window.total, window.ahead.get(TRAITS)) == (60, None)


def test_a_function_of_which_nothing_ends_any_more_is_forgotten() -> None:
    window, function = AgentWindow(4), JobTraits()
    before = sys.getrefcount(function)
    window.ended(function)
    window.look(1.0)
    assert sys.getrefcount(function) > before
    window.look(10.0)
    assert sys.getrefcount(function) == before


def test_other_lanes_count_at_once() -> None:
    window = AgentWindow(4)
    window.lanes = 16
    assert size(window, 1.0) == 32


def busy(seconds: float, way: float, lanes: int = 4) -> float:
    """Return which share of the time an agent's lanes run jobs, in a virtual second.

    The half of a second before it does not count.

    Args:
        seconds: How long each job takes.
        way: How long a word takes to the agent, or back.
        lanes: How many jobs it runs at once.
    """
    step, begin, end = 0.0001, 5_000, 15_000
    window, there, worked = AgentWindow(lanes), 0, 0
    coming: deque[tuple[int, int]] = deque()  # when how many jobs reach the agent
    back: deque[int] = deque()  # when the client hears of an end
    ends: list[int] = []
    waiting = 0
    for now in range(end):
        while coming and coming[0][0] <= now:
            waiting += coming.popleft()[1]
        done = [at for at in ends if at <= now]
        ends = [at for at in ends if at > now]
        back += [now + round(way / step)] * len(done)
        while waiting and len(ends) < lanes:
            waiting -= 1
            ends.append(now + round(seconds / step))
        worked += len(ends) if now >= begin else 0
        while back and back[0] <= now:
            back.popleft()
            there -= 1
            window.ended(TRAITS)
        room = size(window, now * step) - there
        if room > 0:
            there += room
            coming.append((now + round(way / step), room))
    return worked / ((end - begin) * lanes)


@pytest.mark.parametrize(
    ("seconds", "way"), [(0.1, 0.001), (0.01, 0.002), (0.001, 0.002), (0.001, 0.02)]
)
def test_an_agent_is_busy_while_the_next_jobs_are_on_their_way(
    seconds: float, way: float
) -> None:
    assert busy(seconds, way) > 0.9
