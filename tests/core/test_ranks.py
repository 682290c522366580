"""The numbers by which jobs know their workers: 0 to n - 1 among those that take jobs."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncpool._core.slots.lifecycle import rank_of
from asyncpool._core.slots.slots import Slot
from asyncpool._core.supervision.supervision import Supervision
from asyncpool.enums import SlotState
from tests.core.supervised import gone, pool, short


def ranks(core: Supervision) -> dict[int, int]:
    """Return the ranks of the workers that take jobs, by slot."""
    up = {SlotState.IDLE, SlotState.BUSY}
    return {s.index: s.rank for s in core.slots if s.state in up and not s.draining}


def test_first_workers_have_the_numbers_of_their_slots() -> None:
    assert ranks(pool(3)) == {0: 0, 1: 1, 2: 2}


def test_a_successor_has_the_rank_of_the_dead_one() -> None:
    core = pool(3)
    gone(core, 1, 1.0)
    gone(core, 0, 1.0)
    core.workers.ready(0, 1.1)
    core.workers.ready(1, 1.1)
    assert ranks(core) == {0: 0, 1: 1, 2: 2}


def test_a_replacement_has_the_rank_of_the_worker_that_it_replaces() -> None:
    core = pool(2)
    for now in (1.0, 2.0, 3.0):
        old = next(index for index, rank in ranks(core).items() if rank == 1)
        core.replacements.replace(core.slots[old], "max_age", now)
        [new] = [s.index for s in core.slots if s.replaces == old]
        assert core.slots[new].rank == core.slots[old].rank == 1
        core.workers.ready(new, now)
        gone(core, old, now)
        assert sorted(ranks(core).values()) == [0, 1]
        assert new in ranks(core)


def test_the_rank_of_a_worker_that_leaves_is_free_for_its_successor() -> None:
    core = pool(2)
    core.jobs.submit(1, short())
    core.replacements.release(core.slots[0], "asked", 1.0)
    core.workers.ready(2, 1.1)
    assert ranks(core) == {1: 1, 2: 0}
    assert core.slots[0].draining


def test_a_pool_that_has_shrunk_gives_low_ranks_again() -> None:
    core = pool(3)
    gone_first = [0, 1]
    core.replacements.resize(1, 1, 1.0)
    for index in gone_first:
        gone(core, index, 1.1)
    [(last, rank)] = ranks(core).items()
    assert rank == 2, "a worker keeps its rank"
    core.replacements.replace(core.slots[last], "max_age", 2.0)
    [new] = [s for s in core.slots if s.replaces == last]
    assert new.rank == 0


def test_beyond_the_size_the_next_rank_is_taken() -> None:
    slots = [Slot(index, SlotState.IDLE, rank=index) for index in range(2)]
    assert rank_of(Slot(2), [*slots, Slot(2)], 2) == 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["die", "replace", "resize", "end"]), st.integers(0, 5)
        ),
        max_size=25,
    )
)
def test_no_two_workers_that_take_jobs_have_the_same_rank(
    steps: list[tuple[str, int]],
) -> None:
    core, now = pool(2, 4), 0.0
    for step, number in steps:
        now += 1.0
        slot = core.slots[number % len(core.slots)]
        if step == "resize":
            core.replacements.resize(1 + number % 3, 1 + number % 3, now)
        elif step == "replace":
            core.replacements.replace(slot, "max_age", now)
        elif slot.state in {SlotState.IDLE, SlotState.STOPPING}:
            gone(core, slot.index, now)
        for coming in [s for s in core.slots if s.state is SlotState.STARTING]:
            core.workers.ready(coming.index, now)
        found = list(ranks(core).values())
        assert len(found) == len(set(found))
