"""What asyncpool's own code in a worker logs; on the way its pool, slot, generation and pid are added.

The service believes a worker none of the other ids: what a job makes up rings no alert of theirs.
``docs/log-records.md`` tells what each of these means, and what to do about it.
"""

from __future__ import annotations

from asyncpool._core.logs import LogMessage, debug, error, info, warning

# Of a pool.

JOB_BLOCKED_LOOP = warning(
    "job-blocked-loop",
    "%(who)s ran for %(seconds).3g s by the clock %(where)s, and the event loop of its worker "
    "ran nothing else meanwhile: it computed, or blocked, or the worker had to wait for a "
    "CPU%(hint)s",
    "seconds",
)

# Of a server.

RETIRE_CALLED = info("retire-called", "this worker retires: %(reason)s", "reason")
REPLACEMENT_CALLED = info(
    "replacement-called", "this worker asks for a replacement: %(reason)s", "reason"
)
CONNECTIONS_CUT_OFF = warning(
    "connections-cut-off",
    "%(open)d of %(opened)d connections had not ended within the %(limit)s of %(seconds)g s, "
    "and are cut off%(who)s",
    "open opened limit seconds",
)
SERVE_CANCELLED = warning(
    "serve-cancelled",
    "what this worker serves had not ended within the %(limit)s of %(seconds)g s, and is "
    "cancelled",
    "limit seconds",
)
VALUE_UNREADABLE = error(
    "value-unreadable", "this worker cannot read %(what)s and drops it"
)
NOT_ACCEPTED = warning("not-accepted", "no connection can be accepted now: %(why)s")
NOT_HANDED_ON = warning(
    "not-handed-on",
    "no connection can be handed on to other workers any more: %(why)s; each of them is "
    "closed behind its next response, or after %(seconds)g s without a request",
    "seconds",
)
CONNECTION_FAILED = debug("connection-failed", "a connection failed: %(why)s")
REQUEST_TIMED_OUT = warning(
    "request-timed-out",
    "%(method)s %(path)s%(who)s %(why)s, and is %(done)s, %(seconds).1f s after it came",
    "method path seconds status",
)
WORKER_BUSY = warning(
    "worker-busy",
    "this worker takes no requests now: %(why)s; new connections go to others that can",
)
WORKER_FREE = info(
    "worker-free", "this worker takes requests again, after %(seconds).1f s", "seconds"
)
LOOKS_LIKE_FACTORY = warning(
    "looks-like-factory",
    "%(function)s takes no arguments, and is called to make the application; say --factory "
    "if that is right",
    "function",
)

IDS = frozenset(it.id for it in list(globals().values()) if isinstance(it, LogMessage))
