"""What a worker may answer that is asked where its jobs are."""

from __future__ import annotations

from typing import Any, cast

import pytest

from asyncpool._runtime.traffic.stack_dump import MAX_TEXT, LiveStacks
from asyncpool.errors import ProtocolError

NOBODY = cast("Any", None)


def test_an_answer_has_a_bound() -> None:
    with pytest.raises(ProtocolError, match=r"^it sent stacks of 65537 bytes$"):
        LiveStacks(NOBODY).answered(NOBODY, 0, b"x" * (MAX_TEXT + 1))


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    LiveStacks(NOBODY).answered(NOBODY, 0, b"x" * MAX_TEXT)
