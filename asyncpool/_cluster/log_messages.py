"""What the logs of servers say, beside what they say like pools.

``docs/log-records.md`` tells what each of these means, and what to do about it.
"""

from __future__ import annotations

from asyncpool._wire.log_records import error, info, warning

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
