"""What is submitted here; nothing in this folder is ever run.

Type checkers judge these files (``make types``).  Each has a part that must be accepted
and one that must be rejected: there every line is marked for both checkers, and a mark
that hides no error is an error itself, so a line that becomes valid fails the check.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

__all__ = ["add", "fetch", "join", "lines", "pages", "repeat", "total"]


def add(left: int, right: int = 0, *, carry: bool = False) -> int:
    return left + right + carry


def join(head: str, number: int, tail: bytes) -> str:
    return f"{head}{number}{tail!r}"


def repeat(text: str, times: int) -> list[str]:
    return [text] * times


def total(*numbers: float) -> float:
    return sum(numbers)


async def fetch(url: str, retries: int = 1) -> bytes:
    return url.encode() * retries


def pages(path: str, first: int = 0) -> Iterator[bytes]:
    yield path.encode() * first


async def lines(count: int) -> AsyncIterator[str]:
    yield "" * count
