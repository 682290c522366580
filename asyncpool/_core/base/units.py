"""Amounts of memory, for people: who wants to compute with them finds them as integers."""

from __future__ import annotations

_STEP = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def in_units(size: int) -> str:
    """Return a number of bytes as a text, such as ``512 MiB``.

    What has a decimal place is rounded, what has none is exact.
    """
    if size < _STEP:
        return f"{size} byte{'' if size == 1 else 's'}"
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    whole, rest = divmod(size, _STEP**power)
    number = f"{size / _STEP**power:.1f}" if rest else f"{whole}"
    return f"{number} {_UNITS[power - 1]}"
