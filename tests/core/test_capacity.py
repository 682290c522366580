"""How a pool grows and shrinks."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncpool._core.deadlines import earliest
from asyncpool._core.slots import GROW_EVERY, Sizing

IDLE = 60.0


def next_look(sizing: Sizing) -> float | None:
    return earliest(sizing.grow_at, sizing.shrink_at)


def grow(sizing: Sizing, now: float, *, waiting: int, coming: int = 0) -> int:
    assert sizing.grow_at == now
    sizing.grow(now, waiting=waiting, coming=coming)
    return sizing.size


def test_a_pool_of_a_fixed_size_looks_at_nothing() -> None:
    sizing = Sizing(4, 4, IDLE)
    assert not sizing.may_grow
    sizing.job_waits(0.0)
    assert next_look(sizing) is None
    sizing.grow(1.0, waiting=100, coming=0)
    assert sizing.shrink(1e9, [(0.0, 0)]) is None
    assert sizing.size == 4


def test_it_grows_by_more_and_more_as_long_as_jobs_wait() -> None:
    sizing, now, sizes = Sizing(2, 20, IDLE), 0.0, []
    sizing.job_waits(now)
    assert not sizing.may_grow, "one report is enough"
    while sizing.size < 20:
        now += GROW_EVERY
        sizes.append(grow(sizing, now, waiting=100))
    assert sizes == [3, 5, 9, 17, 20]
    assert not sizing.may_grow
    assert sizing.grow_at is None


def test_a_burst_that_is_over_soon_starts_nobody() -> None:
    sizing = Sizing(2, 20, IDLE)
    sizing.job_waits(0.0)
    assert grow(sizing, GROW_EVERY, waiting=0) == 2
    assert sizing.may_grow, "the next one may not be over soon"
    assert next_look(sizing) is None


def test_no_more_are_started_than_there_are_jobs_without_one() -> None:
    sizing = Sizing(1, 20, IDLE)
    sizing.job_waits(0.0)
    assert grow(sizing, GROW_EVERY, waiting=1) == 2
    assert grow(sizing, 2 * GROW_EVERY, waiting=1, coming=1) == 2
    # It is no matter of time any more, but of the next one that waits.
    assert sizing.grow_at is None
    assert sizing.may_grow
    sizing.job_waits(1.0)
    assert grow(sizing, 1.0 + GROW_EVERY, waiting=3, coming=1) == 4
    assert grow(sizing, 1.0 + 2 * GROW_EVERY, waiting=1, coming=3) == 4


def test_whoever_has_been_idle_for_longest_goes_first_and_one_at_a_time() -> None:
    sizing = Sizing(1, 4, IDLE)
    sizing.job_waits(0.0)
    assert grow(sizing, GROW_EVERY, waiting=9) == 2
    assert grow(sizing, 2 * GROW_EVERY, waiting=9) == 4
    idle = [(10.0, 0), (5.0, 1), (20.0, 2), (5.5, 3)]
    now = next_look(sizing)
    assert now == GROW_EVERY + IDLE
    gone = []
    while now is not None:
        slot = sizing.shrink(now, [pair for pair in idle if pair[1] not in gone])
        if slot is not None:
            gone.append(slot)
        now = next_look(sizing)
    assert gone == [1, 3, 0]
    assert sizing.size == 1


@given(
    st.lists(
        st.tuples(st.floats(0.0, 50.0), st.floats(0.0, 200.0)), min_size=1, max_size=20
    )
)
def test_an_idle_worker_goes_exactly_when_its_time_is_over(
    spells: list[tuple[float, float]],
) -> None:
    """It is busy and then idle, in turns; nobody reports when it becomes idle."""
    sizing = Sizing(1, 2, IDLE)
    sizing.job_waits(0.0)
    grow(sizing, GROW_EVERY, waiting=1)
    begin = GROW_EVERY
    looks = 0
    for busy, idle in spells:
        since = begin + busy
        end = since + idle
        while (look := next_look(sizing)) is not None and look < end:
            looks += 1
            working = look < since
            slot = sizing.shrink(look, [] if working else [(since, 1)])
            if slot is not None:
                assert look == since + IDLE
                return
        assert idle <= IDLE or end <= since + IDLE
        begin = end
    assert looks <= (begin + IDLE) / IDLE * 2 + len(spells)


def test_other_bounds_count_at_once() -> None:
    sizing = Sizing(2, 2, IDLE)
    sizing.limit(4, 8, 1.0)
    assert (sizing.size, sizing.may_grow) == (4, True)
    sizing.limit(1, 3, 2.0)
    assert sizing.size == 3
    assert next_look(sizing) == 2.0 + IDLE
    sizing.limit(2, 2, 3.0)
    assert (sizing.size, sizing.may_grow) == (2, False)
    assert next_look(sizing) is None
    # And it begins slowly again.
    sizing = Sizing(1, 20, IDLE)
    sizing.job_waits(0.0)
    assert grow(sizing, GROW_EVERY, waiting=9) == 2
    sizing.limit(2, 30, 1.0)
    sizing.job_waits(1.0)
    assert grow(sizing, 1.0 + GROW_EVERY, waiting=9) == 3
