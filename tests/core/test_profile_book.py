"""Whom a pool has asked for samples, and what they sent."""

from __future__ import annotations

from asyncpool._core.profile.profile_book import ProfileBook, WorkerRecord
from asyncpool._core.profile.profile_messages import SampleChunk, SampleFigures
from asyncpool._core.profile.stack_counts import Stack

SORT: Stack = ("shop.sort", ("shop.sort:3",))
PARSE: Stack = ("shop.parse", ("shop.parse:9",))


def chunk(error: str = "", **stacks: int) -> SampleChunk:
    known = {"sort": SORT, "parse": PARSE}
    return SampleChunk(
        {known[name]: samples for name, samples in stacks.items()},
        SampleFigures(1, 2, 3),
        error,
    )


def record(book: ProfileBook) -> WorkerRecord:
    [found] = book.records
    return found


def test_the_samples_of_all_workers_are_counted_together() -> None:
    book = ProfileBook()
    book.ask(1, 1, 101)
    book.ask(0, 2, 100)
    book.hear(0, 2, chunk(sort=1), last=False)
    book.hear(1, 1, chunk(sort=4, parse=6), last=True)
    book.hear(0, 2, chunk(parse=2), last=True)
    assert not book.is_open
    assert book.stacks == [(PARSE, 8), (SORT, 5)]
    first, second = book.records
    assert (first.slot, first.generation, first.pid) == (0, 2, 100)
    assert (first.samples, first.idle, first.skipped, first.missed) == (3, 2, 4, 6)
    assert (second.slot, second.samples, second.complete) == (1, 10, True)


def test_a_profile_is_open_until_the_last_worker_has_sent_everything() -> None:
    assert not ProfileBook().is_open
    book = ProfileBook()
    book.ask(0, 1, 100)
    assert book.is_open
    book.hear(0, 1, chunk(sort=1), last=False)
    assert (book.is_open, record(book).complete) == (True, False)
    book.hear(0, 1, chunk(), last=True)
    assert (book.is_open, record(book).complete) == (False, True)
    book.lost(0, 1)
    assert record(book).complete, "its end costs nothing then"


def test_a_worker_that_ends_costs_what_it_has_not_sent() -> None:
    book = ProfileBook()
    book.ask(0, 1, 100)
    book.hear(0, 1, chunk(sort=1), last=False)
    book.lost(0, 1)
    assert (book.is_open, record(book).complete) == (False, False)
    assert book.stacks == [(SORT, 1)]
    book.hear(0, 1, chunk(sort=1), last=True)
    assert record(book).samples == 1, "nothing counts after its end"


def test_the_replacement_is_a_worker_of_its_own() -> None:
    book = ProfileBook()
    book.ask(0, 1, 100)
    book.lost(0, 1)
    book.ask(0, 2, 200)
    book.hear(0, 2, chunk(parse=5), last=True)
    assert [(each.pid, each.samples, each.complete) for each in book.records] == [
        (100, 0, False),
        (200, 5, True),
    ]


def test_nothing_counts_of_a_worker_that_was_not_asked() -> None:
    book = ProfileBook()
    book.hear(3, 1, chunk(sort=1), last=True)
    book.lost(3, 1)
    assert (book.stacks, book.records) == ([], [])


def test_a_sampler_that_has_failed_is_not_complete() -> None:
    book = ProfileBook()
    book.ask(0, 1, 100)
    book.hear(0, 1, chunk("no memory"), last=True)
    assert (record(book).complete, record(book).error) == (False, "no memory")
