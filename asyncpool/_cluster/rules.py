"""How long a worker may drain, which it and its master both decide."""

from __future__ import annotations

from asyncpool._wire.records import Record


class DrainLimit(Record):
    """The end of a drain.

    Attributes:
        over_at: When the time is over.
        name: The option of the cluster that sets it.
        seconds: The value of that option.
    """

    over_at: float
    name: str
    seconds: float


class DrainTimes(Record):
    """The options of a cluster about drains.

    Attributes:
        at_end: Seconds that workers have if the cluster ends.
        replaced: Seconds that a worker has if others go on serving.
    """

    at_end: float
    replaced: float

    def limit(
        self, began: float, end_began: float | None, *, others_serve: bool
    ) -> DrainLimit:
        """Return the limit for the drain of a worker, by what is known so far.

        Args:
            began: When the worker began to drain.
            end_began: When the whole cluster began to end, if it did.
            others_serve: Whether other workers went on serving when the drain began.
        """
        at_end, replaced = self
        if not others_serve:
            return DrainLimit(began + at_end, "drain_timeout", at_end)
        name = "reload_drain_timeout" if replaced != at_end else "drain_timeout"
        limit = DrainLimit(began + replaced, name, replaced)
        if end_began is not None and end_began + at_end < limit.over_at:
            return DrainLimit(end_began + at_end, "drain_timeout", at_end)
        return limit
