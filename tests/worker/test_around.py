"""The contract of a hook: what is entered is left once, and a request to end passes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from asyncpool import JobCancelled
from asyncpool._core.wire.context import PLAIN
from asyncpool._worker.api.context import running
from asyncpool._worker.job.around import Hook


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    mark = running.set((7, 1, PLAIN, 0.0, "shop.work"))
    yield
    running.reset(mark)


class Manager:
    """Notes how it is left, and raises what it is told.

    Attributes:
        ends: What it was left with.
    """

    def __init__(self, **errors: BaseException) -> None:
        self.ends: list[Any] = []
        self._errors = errors

    def __enter__(self) -> None:
        if "enter" in self._errors:
            raise self._errors["enter"]

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.ends.append(error)
        if "exit" in self._errors:
            raise self._errors["exit"]


def hook_of(manager: Manager) -> Hook:
    return Hook("shop:around", lambda _: manager)


def test_a_request_to_end_passes_while_it_enters() -> None:
    with pytest.raises(JobCancelled):
        hook_of(Manager(enter=JobCancelled())).enter()


@pytest.mark.parametrize("error", [None, KeyError("job")])
def test_a_request_to_end_passes_while_it_exits(error: BaseException | None) -> None:
    entered = hook_of(Manager(exit=JobCancelled())).enter()
    with pytest.raises(JobCancelled):
        entered.leave(error)


def test_it_is_left_once() -> None:
    manager = Manager()
    entered = hook_of(manager).enter()
    entered.leave(None)
    entered.leave(KeyError("late"))
    assert manager.ends == [None]


def test_what_it_raises_again_has_no_note() -> None:
    error = KeyError("job")
    hook_of(Manager(exit=error)).enter().leave(error)
    assert not hasattr(error, "__notes__")


def test_an_item_that_ends_before_its_next_step_leaves_it() -> None:
    """Nor is there a warning that its coroutine was never awaited."""

    async def work() -> None:
        raise AssertionError

    manager, error = Manager(), asyncio.CancelledError()
    coroutine = hook_of(manager).around_items(work)()
    assert manager.ends == []
    with pytest.raises(asyncio.CancelledError):
        coroutine.throw(error)
    assert manager.ends == [error]
