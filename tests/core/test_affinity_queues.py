"""Tests of asyncpool/_core/dispatch/dispatcher.py; its model is that of test_dispatch."""

from __future__ import annotations

from asyncpool._core.base.job_traits import JobTraits, KeyedTraits
from asyncpool._core.dispatch.dispatcher import AffinityQueues
from asyncpool._core.dispatch.queue import OLDEST_EVERY
from asyncpool._core.dispatch.rendezvous import choose

SEATS = {0: 10, 1: 11, 2: 12}


def lines_of(*keys: int) -> AffinityQueues:
    """Return lines in which the job of each number has the key of that index."""
    lines = AffinityQueues(OLDEST_EVERY)
    lines.assign(SEATS)
    for job, key in enumerate(keys):
        lines.add(job, KeyedTraits(JobTraits(), key), job % 3 - 1)
    return lines


def waiting(lines: AffinityQueues) -> dict[int, int | None]:
    """Return in which line each job waits."""
    return {
        entry.job: place
        for place, line in lines.open.items()
        for entry in line.entries()
    }


def test_each_job_waits_where_its_key_belongs() -> None:
    lines = lines_of(*range(30))
    assert waiting(lines) == {key: choose(key, SEATS) for key in range(30)}
    assert {lines.slot_of(key) for key in range(30)} == {10, 11, 12}
    assert len(lines) == 30


def test_when_a_place_is_handed_over_its_line_stays_as_it_is() -> None:
    lines = lines_of(*range(30))
    before = dict(lines.open)
    lines.assign({0: 10, 1: 99, 2: 12})
    assert all(lines.open[place] is line for place, line in before.items())
    assert lines.queue_of(99) is before[1]
    assert lines.queue_of(11) is None


def test_a_place_that_changes_with_another_one_moves_the_keys_of_both() -> None:
    lines = lines_of(*range(30))
    lines.assign({0: 10, 7: 11, 2: 12})
    assert waiting(lines) == {key: choose(key, {0, 2, 7}) for key in range(30)}


def test_who_waits_for_nobody_goes_to_the_first_that_come() -> None:
    lines = AffinityQueues(OLDEST_EVERY)
    lines.requeue({job: KeyedTraits(JobTraits(), job) for job in range(10)})
    assert waiting(lines) == dict.fromkeys(range(10))
    lines.assign(SEATS)
    assert waiting(lines) == {key: choose(key, SEATS) for key in range(10)}
    lines.assign({})
    assert waiting(lines) == dict.fromkeys(range(10))


def test_nothing_is_kept_of_jobs_that_have_left() -> None:
    lines = lines_of(*range(9), *range(9))
    for job in range(9):
        assert lines.remove(job)
        assert not lines.remove(job)
    assert sorted(lines.take_all()) == list(range(9, 18))
    lines.add(1, KeyedTraits(JobTraits(), 1), 0)
    assert lines.remove(1)
    assert (lines.open, lines._keys, lines._groups) == ({}, {}, {})


def test_who_joins_a_line_keeps_its_age() -> None:
    lines = lines_of(*range(30))
    returned: dict[int, JobTraits] = {
        job: KeyedTraits(JobTraits(), job % 7) for job in (43, 41, 47, 42)
    }
    lines.requeue(returned)
    lines.assign({0: 10})
    [line] = lines.open.values()
    begun = []
    while line:
        begun.append(line.head()[0])
        line.pop(begun[-1])
    assert begun == [41, 42, 43, 47, *sorted(range(30), key=lambda job: (job % 3, job))]
