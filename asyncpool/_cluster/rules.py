"""What both ends of a cluster's link know: counts of messages, and which drain timeout holds.

The pool and a worker that serves send each other messages.  Each message waits in the receiving process until the
user's code takes it.  So the sender counts: at most :data:`MOST_MESSAGES` of its
messages may be untaken, and the next one waits.  The receiver says now and then how
many its user has taken in all.  Neither end trusts the other's count.

Sockets and files need no such count, since the receiving process answers each of them.

``docs/log-records.md`` tells what each of the log's messages here means, and what to do about it.
"""

from __future__ import annotations

from enum import IntEnum

from asyncpool._wire.log_records import error, info, warning
from asyncpool._wire.records import Record
from asyncpool.errors import ProtocolError


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


class HandleTag(IntEnum):
    """For whom the descriptor of a ``HANDLE`` frame is."""

    CONNECTION = 0
    USER = 1


# The most messages, in each direction, that were sent and not taken.
MOST_MESSAGES = 64


class MessageCredit:
    """The counts of one end.

    Args:
        peer: The name of the other end in errors.
        tell_every: After how many taken messages this end tells the other end.
    """

    def __init__(self, peer: str, tell_every: int = 1) -> None:
        self._peer = peer
        self._tell_every = tell_every
        self._sent = self._taken_there = 0
        self._received = self._taken_here = self._told = 0

    @property
    def has_room(self) -> bool:
        """Whether the other end has room for one more message."""
        return self._sent - self._taken_there < MOST_MESSAGES

    def send(self) -> None:
        """Count a message that is sent."""
        self._sent += 1

    def make_room(self, taken: int) -> None:
        """Record how many messages the other end's user has taken in all.

        Raises:
            ProtocolError: If fewer were sent, or if more were taken before.
        """
        if not self._taken_there <= taken <= self._sent:
            raise ProtocolError(
                f"{self._peer} took {taken} messages, after {self._taken_there} of "
                f"{self._sent}"
            )
        self._taken_there = taken

    def receive(self) -> None:
        """Count a message that has arrived.

        Raises:
            ProtocolError: If the other end has not waited for room.
        """
        self._received += 1
        if self._received - self._told > MOST_MESSAGES:
            raise ProtocolError(
                f"{self._peer} sent a message beyond the {MOST_MESSAGES} for which there "
                "is room"
            )

    def take(self) -> int | None:
        """Count a message that the user has taken.

        Returns:
            How many were taken in all, if it is time to tell the other end; else ``None``.
        """
        self._taken_here += 1
        if self._taken_here - self._told < self._tell_every:
            return None
        self._told = self._taken_here
        return self._told


# The master.

SERVER_READY = info(
    "server-ready",
    "%(title)s: serves after %(seconds).2f s: process %(pid)d, %(where)s",
    "pool pid addresses seconds",
)
STOP_ASKED = info("stop-asked", "%(title)s: asked to end by %(by)s: %(how)s", "pool by")
RELOAD_ASKED = info("reload-asked", "%(title)s: asked to reload by %(by)s", "pool by")
RESIZE_ASKED = info(
    "resize-asked", "%(title)s: asked to have %(number)s by %(by)s", "pool by workers"
)
SIGNAL_REFUSED = warning(
    "signal-refused",
    "%(title)s: %(signal)s means nothing here: SIGHUP reloads, SIGTERM ends after a drain, "
    "SIGQUIT at once",
    "pool signal",
)
SERVER_ENDED = info(
    "server-ended",
    "%(title)s: has ended: %(finished)d connections finished meanwhile, %(failed)d were cut "
    "off, %(killed)d workers killed",
    "pool finished failed killed",
)
ORDER_FAILED = error("order-failed", "an order to %(title)s has failed", "pool")
WORKER_STACKS = warning(
    "worker-stacks", "stacks of worker %(slot)d:\n%(stacks)s", "pool slot"
)
TOO_FEW_DESCRIPTORS = error(
    "too-few-descriptors",
    "%(title)s accepts no connections, since there are too few descriptors: %(why)s",
    "pool",
)
CONNECTIONS_LOST = error(
    "connections-lost",
    "%(title)s: %(lost)d connections of worker %(slot)d were closed, since there were too few "
    "descriptors to hand them on",
    "pool slot lost",
)
WORKER_OVERRAN = warning(
    "worker-overran",
    "%(title)s: worker %(pid)d in slot %(slot)d was killed since %(why)s%(cost)s",
    "pool slot generation pid limit cut_off",
)
WORKER_LATE = warning(
    "worker-late",
    "%(title)s: worker %(slot)d does not take its connections, since its event loop is blocked; "
    "new ones go to others that can",
    "pool slot",
)
MESSAGES_DROPPED = warning(
    "messages-dropped",
    "%(title)s drops %(messages)d messages of dead workers in slot %(slot)d, which nobody "
    "has read",
    "pool slot messages",
)
MESSAGES_UNREAD = warning(
    "messages-unread",
    "worker %(slot)d of %(title)s sends messages, which nobody can read here: they are "
    "dropped",
    "pool slot",
)
MESSAGE_UNREADABLE = error(
    "message-unreadable",
    "%(title)s cannot read a message of worker %(slot)d and drops it",
    "pool slot",
)
DESCRIPTOR_UNREADABLE = error(
    "descriptor-unreadable",
    "%(title)s cannot read what worker %(slot)d has sent with a descriptor, and drops both",
    "pool slot",
)

# The command ``asyncpool serve``, to which no level applies.

SERVING = info(
    "serving",
    "serving %(target)s after %(seconds).1f s%(lines)s",
    "target addresses seconds",
)
CODE_CHANGED = info("code-changed", "%(files)s changed: reloading", "files")
CHANGE_AWAITED = info(
    "change-awaited", "waiting for a change of the code (Ctrl-C ends)"
)
NOT_LOADED = error(
    "not-loaded", "%(target)s cannot be served: %(reason)s%(lines)s", "target reason"
)
SERVER_GAVE_UP = error(
    "server-gave-up", "%(target)s: given up: %(reason)s%(last)s", "target reason"
)
