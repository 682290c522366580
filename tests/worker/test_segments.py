"""The contract of a worker's shared memory: one thread hears of it, another uses it."""

from __future__ import annotations

import errno
import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from asyncpool._system.memory import Memory, create
from asyncpool._worker.channel.segments import Segments
from tests.helpers.guards import open_fds
from tests.helpers.large import mapped
from tests.helpers.patience import PATIENCE

SIZE = 100_000


@pytest.fixture
def segments() -> Segments:
    return Segments()


@pytest.fixture(autouse=True)
def other_thread() -> Iterator[ThreadPoolExecutor]:
    """The one that a test does not run in."""
    with ThreadPoolExecutor(1) as found:
        yield found


def bring(segments: Segments, number: int, word: bytes = b"") -> None:
    """Have a new segment arrive, with a word in it."""
    fd = create(SIZE)
    os.pwrite(fd, word, 0)
    segments.arrive(number, fd, SIZE)


# What arrives.


def test_what_has_arrived_can_be_used(segments: Segments) -> None:
    bring(segments, 7, b"seven")
    bring(segments, 8, b"eight")
    assert bytes(segments.view(8)[:5]) == b"eight"
    assert bytes(segments.view(7)[:5]) == b"seven"
    assert len(segments.view(7)) == SIZE


def test_it_is_mapped_once_and_holds_no_descriptor(segments: Segments) -> None:
    before, maps = open_fds(), mapped()
    bring(segments, 7)
    assert len(open_fds()) == len(before) + 1
    assert mapped() == maps  # nobody needs it yet
    memory = segments.memory(7)
    assert isinstance(memory, Memory)
    assert memory.size == SIZE
    assert open_fds() == before
    for _ in range(3):
        assert segments.memory(7) is memory
    assert mapped() == maps + 1


def test_the_main_thread_waits_for_what_is_on_its_way(
    segments: Segments, other_thread: ThreadPoolExecutor
) -> None:
    waiting = other_thread.submit(lambda: bytes(segments.view(7)[:5]))
    bring(segments, 6, b"other")  # it is not this one
    bring(segments, 7, b"seven")
    assert waiting.result(PATIENCE) == b"seven"
    segments.drop(6)


def test_what_was_lost_on_its_way_is_an_error_once(segments: Segments) -> None:
    segments.arrive(7, None, SIZE)
    with pytest.raises(OSError, match="Too many open files") as caught:
        segments.memory(7)
    assert caught.value.errno == errno.EMFILE
    assert caught.value.args[1] == (
        "Too many open files: the shared memory of a job cannot be received"
    )
    # The pool makes another one, with another number, or the same.
    bring(segments, 7, b"again")
    assert bytes(segments.view(7)[:5]) == b"again"


def test_what_cannot_be_mapped_is_an_error_and_holds_no_descriptor(
    segments: Segments,
) -> None:
    before = open_fds()
    segments.arrive(7, create(SIZE), 0)  # as good as any reason
    with pytest.raises(OSError, match="Invalid argument"):
        segments.view(7)
    assert open_fds() == before
    assert not segments.returned


# What is dropped.


def test_what_was_never_used_is_closed_when_it_is_dropped(segments: Segments) -> None:
    before = open_fds()
    bring(segments, 7)
    bring(segments, 8)
    segments.drop(7)
    [kept] = set(open_fds()) - set(before)
    assert os.fstat(kept).st_size == SIZE
    segments.drop(8)
    assert open_fds() == before


def test_what_was_used_is_unmapped_when_it_is_dropped(segments: Segments) -> None:
    maps = mapped()
    bring(segments, 7)
    view = segments.view(7)
    assert mapped() == maps + 1
    segments.drop(7)
    # Whoever has a view of it all the same does not crash.
    view[:3] = b"abc"
    assert bytes(view[:3]) == b"abc"
    del view
    gc.collect()
    assert mapped() == maps


def test_what_is_unknown_may_be_dropped(segments: Segments) -> None:
    segments.arrive(7, None, SIZE)
    for number in (7, 8, 7):
        segments.drop(number)  # must not raise


def test_a_number_may_be_used_again_after_a_drop(segments: Segments) -> None:
    bring(segments, 7, b"first")
    assert bytes(segments.view(7)[:5]) == b"first"
    segments.drop(7)
    bring(segments, 7, b"second")
    assert bytes(segments.view(7)[:6]) == b"second"


# What comes back.


def test_the_end_of_a_view_is_noted_once(segments: Segments) -> None:
    for number in (7, 8):
        bring(segments, number)
    one, other = segments.view(7), segments.view(8)
    part = one[5:10]
    del one
    assert list(segments.returned) == []
    del other
    assert list(segments.returned) == [8]
    del part
    assert list(segments.returned) == [8, 7]
    segments.returned.clear()
    view = segments.view(7)
    del view
    gc.collect()
    assert list(segments.returned) == [7]


def test_the_end_of_a_view_may_come_in_any_thread(
    segments: Segments, other_thread: ThreadPoolExecutor
) -> None:
    bring(segments, 7)
    views = [segments.view(7)]
    other_thread.submit(views.clear).result(PATIENCE)
    assert list(segments.returned) == [7]


def test_memory_for_an_outcome_is_no_view(segments: Segments) -> None:
    bring(segments, 7)
    segments.memory(7).write(0, [b"outcome"])
    assert list(segments.returned) == []


# Grants.


def test_grants_are_taken_in_their_order(segments: Segments) -> None:
    for number in (3, 0, 5):
        segments.grant(number)
    assert [segments.wait_for_grant() for _ in range(3)] == [3, 0, 5]


def test_the_main_thread_waits_for_a_grant(
    segments: Segments, other_thread: ThreadPoolExecutor
) -> None:
    began = threading.Event()

    def wait() -> int:
        began.set()
        return segments.wait_for_grant()

    waiting = other_thread.submit(wait)
    assert began.wait(PATIENCE)
    bring(segments, 9)  # this is no grant
    assert not waiting.done()
    segments.grant(9)
    assert waiting.result(PATIENCE) == 9
    segments.drop(9)
