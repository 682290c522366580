"""What a master and its workers both know of drains, a want of descriptors, and requests."""

from __future__ import annotations

import errno

from asyncpool._wire.records import Record

# Errors which say that this process, or this machine, has no descriptor or memory left.  They end
# when some process closes a descriptor.
EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


# The most characters in which a worker tells of its open requests.
MAX_REQUESTS = 50_000


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


def drain_limit(
    began: float,
    end_began: float | None,
    *,
    others_serve: bool,
    at_end: float,
    replaced: float,
) -> DrainLimit:
    """Return the limit for the drain of a worker, if there is one so far.

    Args:
        began: When the worker began to drain.
        end_began: When the whole cluster began to end, if it did.
        others_serve: Whether other workers went on serving when the drain began.
        at_end: Seconds that workers have if the cluster ends.
        replaced: Seconds that a worker has if others go on serving.
    """
    if not others_serve:
        return DrainLimit(began + at_end, "drain_timeout", at_end)
    name = "reload_drain_timeout" if replaced != at_end else "drain_timeout"
    limit = DrainLimit(began + replaced, name, replaced)
    if end_began is not None and end_began + at_end < limit.over_at:
        return DrainLimit(end_began + at_end, "drain_timeout", at_end)
    return limit
