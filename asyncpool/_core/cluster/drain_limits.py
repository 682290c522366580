"""Which of a cluster's two drain timeouts ends the drain of a worker, and when."""

from __future__ import annotations

from asyncpool._core.base.records import Record


class DrainLimit(Record):
    """The end of a drain.

    Attributes:
        over_at: When the time is over.
        name: The option of the cluster that says so.
        seconds: What that is set to.
    """

    over_at: float
    name: str
    seconds: float


def drain_limit(
    began: float,
    end_began: float | None,
    *,
    others_serve: bool,
    at_end: float,
    replaced: float,
) -> DrainLimit:
    """Return what bounds the drain of a worker, as far as is known.

    Args:
        began: When it has begun to drain.
        end_began: When the whole cluster has begun to end, if it has.
        others_serve: Whether others went on serving when the drain began.
        at_end: Seconds that workers have if the cluster ends.
        replaced: Seconds that one has if others serve on.
    """
    if not others_serve:
        return DrainLimit(began + at_end, "drain_timeout", at_end)
    name = "reload_drain_timeout" if replaced != at_end else "drain_timeout"
    limit = DrainLimit(began + replaced, name, replaced)
    if end_began is not None and end_began + at_end < limit.over_at:
        return DrainLimit(end_began + at_end, "drain_timeout", at_end)
    return limit
