"""Tests of asyncpool/_runtime/state/life_log.py: what only a unit shows; the rest is end to end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncpool._runtime.state.life_log import describe_roll
from asyncpool.events import RollResult
from tests.runtime.pool_parts import parts_of


@pytest.mark.parametrize(
    ("result", "what", "text"),
    [
        (
            RollResult(replaced=1, reason="", crash=None),
            "roll",
            "rolled: 1 worker is new",
        ),
        (
            RollResult(replaced=2, filled=1, reason="", crash=None),
            "reload",
            "reloaded: 2 workers are new, 1 worker came where starts had failed",
        ),
        (
            RollResult(replaced=0, reason="bad code", crash=None),
            "reload",
            "the reload has ended after 0 workers, the others are as before: bad code",
        ),
    ],
)
def test_the_outcome_of_a_roll_in_words(
    result: RollResult, what: str, text: str
) -> None:
    assert describe_roll(result, what) == text


@pytest.mark.asyncio
async def test_a_record_whose_level_is_off_is_not_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts, _ = parts_of()
    for level, expected in ((logging.INFO, 0), (logging.DEBUG, 1)):
        caplog.set_level(level, "asyncpool")
        parts.state.log.size_changed(3)
        assert caplog.messages == [], "not in the middle of a decision"
        await asyncio.sleep(0)
        assert len(caplog.messages) == expected
