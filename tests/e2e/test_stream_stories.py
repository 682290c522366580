"""Streams that end anywhere: of themselves, by an error, or since their caller leaves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import NamedTuple

from hypothesis import given, strategies as st

from asyncpool import Pool
from tests.helpers import streams
from tests.helpers.patience import patience


class Story(NamedTuple):
    """One stream: what it makes, and what its caller takes of it."""

    stop: int
    error: str
    is_async: bool
    buffer: int
    takes: int

    @property
    def is_left(self) -> bool:
        """Whether the caller leaves before it hears of the end."""
        return self.takes <= self.stop


STORIES = st.builds(
    Story,
    stop=st.integers(0, 12),
    error=st.sampled_from(["", "here it ends"]),
    is_async=st.booleans(),
    buffer=st.integers(1, 5),
    takes=st.integers(1, 14),
)


async def tell(pool: Pool, story: Story) -> tuple[list[int], str]:
    """Take items as the story wants it; return them, and the error behind them."""
    taken: list[int] = []
    stream = pool.options(prefetch=story.buffer).stream(
        streams.told, story.stop, story.error, story.is_async
    )
    try:
        async with aclosing(stream):
            async for item in stream:
                taken.append(item)
                if len(taken) == story.takes:
                    break
    except LookupError as error:
        return taken, str(error)
    return taken, ""


def test_each_ends_where_it_should_and_its_generator_too() -> None:
    with asyncio.Runner() as runner:
        pool = Pool(1)
        runner.run(pool.start())
        ends: set[str] = set()

        async def check_one(story: Story) -> None:
            async with patience():
                taken, error = await tell(pool, story)
                end, made = await pool.submit(streams.last_told)
            assert taken == list(range(min(story.stop, story.takes)))
            assert error == ("" if story.is_left else story.error)
            # No more than was taken, and might wait.
            assert len(taken) <= made <= len(taken) + story.buffer
            whole = {"raised" if story.error else "done"}
            if not story.is_left:
                assert (end, made) == (*whole, story.stop)
            else:
                # It may have come to its end ahead of who takes its items.
                assert end in ({"left"} | whole if made == story.stop else {"left"})
            ends.add(end)

        @given(story=STORIES)
        def check(story: Story) -> None:
            runner.run(check_one(story))

        try:
            check()
            assert ends == {"left", "raised", "done"}
            assert pool.stats().crashes == 0
        finally:
            runner.run(pool.close())
