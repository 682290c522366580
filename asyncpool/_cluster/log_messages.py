"""What the logs of servers say, beside what they say like pools.

``docs/log-records.md`` tells what each of these means, and what to do about it.
"""

from __future__ import annotations

from asyncpool._wire.log_records import error, give_ids, info, warning

# The master.

SERVER_READY = info(
    "%(title)s: serves after %(seconds).2f s: process %(pid)d, %(where)s"
)
SOCKETS_IGNORED = warning(
    "%(title)s does not serve on %(sockets)d sockets that the service manager has passed: "
    "bind to systemd:"
)
STOP_ASKED = info("%(title)s: asked to end by %(by)s: %(how)s")
RELOAD_ASKED = info("%(title)s: asked to reload by %(by)s")
RESIZE_ASKED = info("%(title)s: asked to have %(number)s by %(by)s")
SIGNAL_REFUSED = warning(
    "%(title)s: %(signal)s means nothing here: SIGHUP reloads, SIGTERM ends after a drain, "
    "SIGQUIT at once"
)
SERVER_ENDED = info(
    "%(title)s: has ended: %(finished)d connections finished meanwhile, %(failed)d were cut "
    "off, %(killed)d workers killed"
)
ORDER_FAILED = error("an order to %(title)s has failed")
WORKER_STACKS = warning("stacks of worker %(slot)d:")
TOO_FEW_DESCRIPTORS = error(
    "%(title)s accepts no connections, since there are too few descriptors: %(why)s"
)
CONNECTIONS_LOST = error(
    "%(title)s: %(lost)d connections of worker %(slot)d were closed, since there were too few "
    "descriptors to hand them on"
)
WORKER_OVERRAN = warning(
    "%(title)s: worker %(pid)d in slot %(slot)d was killed since %(why)s%(cost)s"
)
WORKER_LATE = warning(
    "%(title)s: worker %(slot)d does not take its connections, since its event loop is blocked; "
    "new ones go to others that can"
)
MESSAGES_DROPPED = warning(
    "%(title)s drops %(messages)d messages of dead workers in slot %(slot)d, which nobody "
    "has read"
)
MESSAGES_UNREAD = warning(
    "worker %(slot)d of %(title)s sends messages, which nobody can read here: they are "
    "dropped"
)
MESSAGE_UNREADABLE = error(
    "%(title)s cannot read a message of worker %(slot)d and drops it"
)
DESCRIPTOR_UNREADABLE = error(
    "%(title)s cannot read what worker %(slot)d has sent with a descriptor, and drops both"
)

# The command ``asyncpool serve``, to which no level applies.

SERVING = info("serving %(target)s after %(seconds).1f s%(lines)s")
CODE_CHANGED = info("%(files)s changed: reloading")
CHANGE_AWAITED = info("waiting for a change of the code (Ctrl-C ends)")
NOT_LOADED = error("%(target)s cannot be served: %(reason)s%(lines)s")
SERVER_GAVE_UP = error("%(target)s: given up: %(reason)s%(last)s")

give_ids(globals())
