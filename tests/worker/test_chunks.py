"""What is noted of each item of a chunk, and what is returned."""

from __future__ import annotations

import asyncio
import mmap
import pickle
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._wire.messages import PLAIN
from asyncpool._wire.page import PageLayout, ask_to_stop, copy_log, read_log
from asyncpool._wire.pickling import pack_error
from asyncpool._worker.api import current
from asyncpool._worker.runner import ChunkLog, JobRunner, begin, call_items

LOG_START = PageLayout(1).log_offset(0)

large = st.integers(min_value=2**63) | st.integers(max_value=-(2**63) - 1)
number = st.integers() | st.floats(allow_nan=False) | st.booleans() | large
values = st.one_of(
    st.lists(st.integers(), max_size=30),
    st.lists(st.floats(allow_nan=False), max_size=30),
    st.lists(number | st.text() | st.none() | st.lists(st.integers()), max_size=30),
)


class Page(mmap.mmap):
    """A worker page, as the pool sees it, and the lane of its only job.

    Attributes:
        log: As the worker sees it.
    """

    log: ChunkLog
    context = leave_hook = instead = None


@pytest.fixture(name="page", scope="module")
def _page() -> Iterator[Page]:
    with tempfile.TemporaryFile() as file:
        file.truncate(PageLayout(1).size)
        page = Page(file.fileno(), PageLayout(1).size)
        page.log = ChunkLog(file.fileno(), LOG_START)
        yield page


def echo(value: Any) -> Any:
    return value


def run(page: Page, function: Any, items: list[Any], hook: Any = None) -> Any:
    """Run a chunk as the first attempt at job 7."""
    mark = current.set((7, 1, PLAIN, 0.0, None))
    runner: Any = SimpleNamespace(hook=hook, by_job={(7, 1): page}, max_payload=1 << 20)
    runner.pack_error = pack_error
    runner.error_for_caller = partial(JobRunner.error_for_caller, runner)
    try:
        packed = pickle.dumps(function)
        return begin(call_items(runner, packed, items, star=False, named=True))
    finally:
        current.reset(mark)


def noted(page: Page) -> list[Any] | None:
    log = copy_log(page, LOG_START, 7, 1)
    return None if log is None else read_log(log)


def kinds(found: list[Any] | None) -> list[tuple[type, str]]:
    assert found is not None
    return [(type(one), repr(one)) for one in found]


@given(values)
def test_whatever_comes_is_noted_and_returned_as_it_is(
    page: Page, items: list[Any]
) -> None:
    result = run(page, echo, items)
    assert kinds(result.load()) == kinds(items)
    assert kinds(noted(page)) == kinds(items)


_page_of: ContextVar[Page] = ContextVar("page_of")


def stop_at_two(number: int) -> int:
    if number == 2:
        ask_to_stop(_page_of.get(), LOG_START, 7)
    return number


def test_a_chunk_that_is_told_to_stop_before_it_begins_stops_at_once(
    page: Page,
) -> None:
    ask_to_stop(page, LOG_START, 6)
    assert run(page, echo, [1, 2, 3]).load() == [1, 2, 3]
    ask_to_stop(page, LOG_START, 7)
    assert run(page, echo, [1, 2, 3]).load() == [1]


def test_no_item_begins_after_the_one_during_which_it_is_asked_to_stop(
    page: Page,
) -> None:
    _page_of.set(page)
    assert run(page, stop_at_two, ["x", 1, 2, 3]).load() == ["x", 1, 2]


_left: ContextVar[list[Any]] = ContextVar("left")


def look_at_three(number: int) -> int:
    """Do what a crash in the midst of the third item would leave behind."""
    if number == 3:
        _left.get().append(noted(_page_of.get()))
    return number


def test_while_an_item_runs_all_before_it_are_noted_and_nothing_else(
    page: Page,
) -> None:
    run(page, echo, [9] * 5)
    _page_of.set(page)
    _left.set([])
    run(page, look_at_three, [1, 2.5, 3, 4])
    assert _left.get() == [[1, 2.5]]


def test_an_item_that_ends_before_its_first_step_leaves_its_hook(page: Page) -> None:
    """Nor is there a warning that its coroutine was never awaited."""
    left, error = list[Any](), asyncio.CancelledError()
    chunk = run(page, asyncio.sleep, [1], lambda: left.append)
    with pytest.raises(StopIteration) as end:
        chunk.throw(error)
    assert (left, len(end.value.value.outcomes)) == ([error], 1)
