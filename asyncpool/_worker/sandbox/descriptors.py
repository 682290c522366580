"""Find descriptors that nobody has given this worker, and that jobs could use."""

from __future__ import annotations

import os

from asyncpool._worker.sandbox.trampolines import TRAMPOLINES

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LISTING = "/proc/self/fd"
_STREAMS = 3

# Libraries keep them open, and they tell nothing.  By a pidfd a process can be signalled, which
# the sandbox refuses, and multiprocessing has that of the service.
_HARMLESS = frozenset(
    (
        "/dev/null",
        "/dev/zero",
        "/dev/full",
        "/dev/random",
        "/dev/urandom",
        TRAMPOLINES,
        "anon_inode:[eventfd]",
        "anon_inode:[eventpoll]",
        "anon_inode:[pidfd]",
        "anon_inode:[signalfd]",
        "anon_inode:[timerfd]",
    )
)


def unknown_descriptors(
    found: Iterable[tuple[int, str]], known: Iterable[int]
) -> list[str]:
    """Return what is in *found* beside the standard streams and *known*.

    A second descriptor of the same file counts as known.

    Args:
        found: What is open, and where it leads to.
        known: What may be open.
    """
    files = {_identity(fd) for fd in known}
    return [
        f"{fd} ({where})"
        for fd, where in found
        if fd >= _STREAMS and where not in _HARMLESS and _identity(fd) not in files
    ]


def open_descriptors() -> Iterator[tuple[int, str]]:
    """Yield what is open, and where it leads to."""
    for name in os.listdir(_LISTING):  # noqa: PTH208 - see _worker/__init__.py
        try:
            where = os.readlink(f"{_LISTING}/{name}")  # noqa: PTH115
            os.fstat(int(name))
        except OSError:
            continue  # that of the listing itself
        yield int(name), where


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
