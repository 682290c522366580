"""The parts of the page do not touch each other."""

from __future__ import annotations

import itertools

from asyncpool._core.beats import BEATS_SIZE
from asyncpool._core.page import (
    BEATS_START,
    BEGUN,
    PAGE_SIZE,
    STACKS_SIZE,
    STACKS_START,
)


def test_each_part_has_its_room() -> None:
    ends = [
        (0, BEGUN.size),
        (BEATS_START, BEATS_START + BEATS_SIZE),
        (STACKS_START, STACKS_START + STACKS_SIZE),
    ]
    for (_, end), (start, _) in itertools.pairwise(ends):
        assert end <= start
    assert ends[-1][1] == PAGE_SIZE, "faulthandler writes as much as there is room for"
