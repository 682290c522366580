"""What the logs of servers say, beside what they say like pools.

``docs/log-records.md`` tells what each of these means, and what to do about it.
"""

from __future__ import annotations

from asyncpool._core.logs import ERROR, INFO, WARNING, LogMessage

# The master.

SERVER_READY = LogMessage(
    "server-ready",
    INFO,
    "%(title)s: serves after %(seconds).2f s: process %(pid)d, %(where)s",
    "pool pid addresses seconds",
)
STOP_ASKED = LogMessage(
    "stop-asked", INFO, "%(title)s: asked to end by %(by)s: %(how)s", "pool by"
)
RELOAD_ASKED = LogMessage(
    "reload-asked", INFO, "%(title)s: asked to reload by %(by)s", "pool by"
)
RESIZE_ASKED = LogMessage(
    "resize-asked",
    INFO,
    "%(title)s: asked to have %(number)s by %(by)s",
    "pool by workers",
)
SIGNAL_REFUSED = LogMessage(
    "signal-refused",
    WARNING,
    "%(title)s: %(signal)s means nothing here: SIGHUP reloads, SIGTERM ends after a drain, "
    "SIGQUIT at once",
    "pool signal",
)
SERVER_ENDED = LogMessage(
    "server-ended",
    INFO,
    "%(title)s: has ended: %(finished)d connections finished meanwhile, %(failed)d were cut "
    "off, %(killed)d workers killed",
    "pool finished failed killed",
)
ORDER_FAILED = LogMessage(
    "order-failed", ERROR, "an order to %(title)s has failed", "pool"
)
WORKER_STACKS = LogMessage(
    "worker-stacks", WARNING, "stacks of worker %(slot)d:\n%(stacks)s", "pool slot"
)
TOO_FEW_DESCRIPTORS = LogMessage(
    "too-few-descriptors",
    ERROR,
    "%(title)s accepts no connections, since there are too few descriptors: %(why)s",
    "pool",
)
CONNECTIONS_LOST = LogMessage(
    "connections-lost",
    ERROR,
    "%(title)s: %(lost)d connections of worker %(slot)d were closed, since there were too few "
    "descriptors to hand them on",
    "pool slot lost",
)
WORKER_OVERRAN = LogMessage(
    "worker-overran",
    WARNING,
    "%(title)s: worker %(pid)d in slot %(slot)d was killed since %(why)s%(cost)s",
    "pool slot generation pid limit cut_off",
)
WORKER_LATE = LogMessage(
    "worker-late",
    WARNING,
    "%(title)s: worker %(slot)d does not take its connections, since its event loop is blocked; "
    "new ones go to others that can",
    "pool slot",
)
MESSAGES_DROPPED = LogMessage(
    "messages-dropped",
    WARNING,
    "%(title)s drops %(messages)d messages of dead workers in slot %(slot)d, which nobody "
    "has read",
    "pool slot messages",
)
MESSAGES_UNREAD = LogMessage(
    "messages-unread",
    WARNING,
    "worker %(slot)d of %(title)s sends messages, which nobody can read here: they are "
    "dropped",
    "pool slot",
)
MESSAGE_UNREADABLE = LogMessage(
    "message-unreadable",
    ERROR,
    "%(title)s cannot read a message of worker %(slot)d and drops it",
    "pool slot",
)
DESCRIPTOR_UNREADABLE = LogMessage(
    "descriptor-unreadable",
    ERROR,
    "%(title)s cannot read what worker %(slot)d has sent with a descriptor, and drops both",
    "pool slot",
)

# The command ``asyncpool serve``, to which no level applies.

SERVING = LogMessage(
    "serving",
    INFO,
    "serving %(target)s after %(seconds).1f s%(lines)s",
    "target addresses seconds",
)
CODE_CHANGED = LogMessage("code-changed", INFO, "%(files)s changed: reloading", "files")
CHANGE_AWAITED = LogMessage(
    "change-awaited", INFO, "waiting for a change of the code (Ctrl-C ends)"
)
NOT_LOADED = LogMessage(
    "not-loaded",
    ERROR,
    "%(target)s cannot be served: %(reason)s%(lines)s",
    "target reason",
)
SERVER_GAVE_UP = LogMessage(
    "server-gave-up",
    ERROR,
    "%(target)s: given up: %(reason)s%(last)s",
    "target reason",
)
