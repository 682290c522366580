"""What the workers of a cluster count of their requests, and how they tell it their master.

A worker tells what it has counted since its start.  So a report that a later one replaces costs
nothing, and what the master knows of a worker that dies is never counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.figures.durations import BUCKETS, HEAD, Durations
from asyncpool.errors import ProtocolError

# The classes of responses, by the first digit of their status; the first one is for what is none.
CLASSES = ("other", "1xx", "2xx", "3xx", "4xx", "5xx")

# The numbers at the beginning of a report.
_COUNTERS = (
    *("open", "open_websockets", "busy"),
    *("cut", "refused", "timed_out", "websockets"),
)
_GROWING = ("cut", "refused", "timed_out", "websockets")


class RequestFigures:
    """What one worker has counted since its start, or several of them together.

    Attributes:
        open: Requests whose application has not returned yet.
        open_websockets: The same of WebSockets.
        busy: Whether it can take no request now; of several workers, how many.
        cut: Requests and WebSockets whose worker did not wait for their end.
        refused: Requests that were answered without asking the application.
        timed_out: Requests that were given up.
        websockets: WebSockets that clients have asked for.
        responses: How long each response took, for each of :data:`CLASSES`.
        lag: How late the event loop ran what was due.
        ended: Whether what was open has been counted as cut off.
    """

    __slots__ = (*_COUNTERS, "ended", "lag", "responses")

    def __init__(self) -> None:
        self.open: int = 0
        self.open_websockets: int = 0
        self.busy: int = 0
        self.cut: int = 0
        self.refused: int = 0
        self.timed_out: int = 0
        self.websockets: int = 0
        self.responses: list[Durations] = [Durations() for _ in CLASSES]
        self.lag: Durations = Durations()
        self.ended: bool = False

    def add(self, other: RequestFigures) -> None:
        """Count all that *other* has counted, too."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in zip(self._durations, other._durations, strict=True):
            mine.add(theirs)

    def end(self) -> None:
        """Count what is open as cut off: the worker waits for nothing any more, or is gone."""
        self.cut += self.open + self.open_websockets
        self.open = self.open_websockets = self.busy = 0
        self.ended = True

    def pack_requests(self) -> list[int]:
        """Return the numbers of a report, up to those about the event loop."""
        numbers = [getattr(self, name) for name in _COUNTERS]
        for each in self.responses:
            numbers += each.pack()
        return numbers

    def pack(self) -> list[int]:
        """Return the numbers of a report."""
        return self.pack_requests() + self.lag.pack()

    @classmethod
    def unpack(cls, numbers: Sequence[int], before: RequestFigures) -> RequestFigures:
        """Read a report.

        Args:
            numbers: What the worker has sent.
            before: Its report before this one.

        Raises:
            ProtocolError: If it is no report, or fewer were counted than before.
        """
        figures, at = cls(), len(_COUNTERS)
        for name, number in zip(_COUNTERS, numbers, strict=False):
            setattr(figures, name, number)
        for each in figures._durations:
            at = each.unpack(numbers, at)
        if at != len(numbers):
            raise ProtocolError(f"its figures have {len(numbers)} numbers")
        if not figures._follows(before):
            raise ProtocolError("its figures are less than before")
        return figures

    def _follows(self, before: RequestFigures) -> bool:
        """Tell whether nothing that only grows is less than *before*."""
        return all(
            getattr(self, name) >= getattr(before, name) for name in _GROWING
        ) and all(
            each.follows(earlier)
            for each, earlier in zip(self._durations, before._durations, strict=True)
        )

    @property
    def _durations(self) -> tuple[Durations, ...]:
        return (*self.responses, self.lag)


def class_of(status: object) -> int:
    """Return which of :data:`CLASSES` a status belongs to."""
    return status // 100 if isinstance(status, int) and 100 <= status < 600 else 0  # noqa: PLR2004 - of HTTP


# The most numbers of a report: more cannot be one.
MOST_NUMBERS = len(_COUNTERS) + (len(CLASSES) + 1) * (BUCKETS + HEAD)
