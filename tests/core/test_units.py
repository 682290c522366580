"""Amounts of memory as people write them."""

from __future__ import annotations

import pytest

from asyncpool._core.base.text import in_units


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1025, "1.0 KiB"),
        (64 << 20, "64 MiB"),
        (529_694_720, "505.2 MiB"),
        (419_430_400, "400 MiB"),
        (2 << 30, "2 GiB"),
        ((2 << 30) - 1, "2.0 GiB"),
        (3 << 39, "1.5 TiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_units_are_those_of_memory(size: int, text: str) -> None:
    assert in_units(size) == text
