"""Tests of asyncpool/_core/cluster/drain_limits.py: which limit ends a drain."""

from __future__ import annotations

import pytest

from asyncpool._core.cluster.drain_limits import DrainLimit, drain_limit

AT_END = "drain_timeout"
REPLACED = "reload_drain_timeout"


@pytest.mark.parametrize(
    ("others_serve", "end_began", "expected"),
    [
        (False, None, (105.0, AT_END, 5.0)),
        (False, 102.0, (105.0, AT_END, 5.0)),
        (True, None, (160.0, REPLACED, 60.0)),
        (True, 120.0, (125.0, AT_END, 5.0)),
        (True, 155.0, (160.0, REPLACED, 60.0)),
        (True, 158.0, (160.0, REPLACED, 60.0)),
    ],
)
def test_the_limit_that_applies_has_the_name_of_its_option(
    others_serve: bool,  # noqa: FBT001 - a parameter of the test
    end_began: float | None,
    expected: tuple[float, str, float],
) -> None:
    found = drain_limit(
        100.0, end_began, others_serve=others_serve, at_end=5.0, replaced=60.0
    )
    assert found == DrainLimit(*expected)


def test_a_reload_has_the_time_of_the_end_by_default() -> None:
    found = drain_limit(100.0, None, others_serve=True, at_end=5.0, replaced=5.0)
    assert found == DrainLimit(105.0, AT_END, 5.0)
