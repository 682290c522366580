"""What the logs of pools say, of their lives, their workers, and what goes wrong.

``docs/log-records.md`` tells what each of these means, and what to do about it; a test holds the
two to each other.
"""

from __future__ import annotations

from asyncpool._wire.log_records import WARNING, debug, error, info, warning

# The life of a pool, or of a cluster.

POOL_STARTED = info(
    "pool-started",
    "%(title)s has started after %(seconds).2f s: %(ready)d of %(workers)d workers are ready",
    "pool workers ready seconds",
)
POOL_CLOSING = info(
    "pool-closing",
    "%(title)s closes: %(jobs)d jobs are open%(limit)s",
    "pool jobs finish timeout",
)
POOL_DROPPED = warning(
    "pool-dropped",
    "%(title)s was dropped without being closed; it finishes its jobs and ends",
    "pool",
)
CLOSE_IS_SLOW = warning(
    "close-is-slow",
    "%(title)s has been closing for %(seconds)d s: waiting for %(what)s",
    "pool seconds jobs queued",
)
JOBS_UNHEARD = warning(
    "jobs-unheard",
    "%(title)s was closed before %(jobs)d of its jobs were done, and nobody waited for them "
    "(%(names)s)",
    "pool jobs",
)
POOL_CLOSED = info(
    "pool-closed",
    "%(title)s is closed: %(finished)d jobs finished meanwhile, %(failed)d failed, "
    "%(killed)d workers were killed",
    "pool finished failed killed",
)
POOL_BROKEN = error(
    "pool-broken",
    "%(title)s is broken: %(reason)s; %(then)s",
    "pool reason retry_after",
)
POOL_RECOVERED = info("pool-recovered", "%(title)s starts workers again", "pool slot")
SUPERVISOR_FAILED = error(
    "supervisor-failed", "the supervisor of %(title)s failed", "pool"
)
SIZE_CHANGED = debug(
    "size-changed", "%(title)s aims at %(workers)d workers", "pool workers"
)
RESIZED = info("resized", "%(title)s is resized: %(size)s", "pool least most")
RESIZE_FAILED = error(
    "resize-failed",
    "%(title)s: the size is to be %(size)s: %(trouble)s",
    "pool least most slot",
)
ROLL_BEGUN = info(
    "roll-begun", "%(title)s replaces its %(workers)d workers", "pool workers"
)
ROLLED = info("rolled", "%(title)s: %(outcome)s", "pool replaced filled seconds")
ROLL_FAILED = error(
    "roll-failed", "%(title)s: %(outcome)s", "pool replaced filled seconds reason"
)

# The lives of their workers.

WORKER_STARTED = debug(
    "worker-started",
    "%(title)s: worker %(pid)d in slot %(slot)d has been started",
    "pool slot generation pid",
)
WORKER_READY = info(
    "worker-ready",
    "%(title)s: worker %(pid)d in slot %(slot)d is ready after %(seconds).2f s",
    "pool slot generation pid seconds",
)
WORKER_RETIRING = info(
    "worker-retiring",
    "%(title)s: worker %(pid)s in slot %(slot)d takes no more %(what)s: %(why)s",
    "pool slot generation pid reason",
)
WORKER_ENDED = info(
    "worker-ended",
    "%(title)s: worker %(pid)s in slot %(slot)d has ended%(why)s",
    "pool slot generation pid reason exit_code signal uptime",
)
WORKER_CRASHED = warning(
    "worker-crashed",
    "%(title)s: %(crash)s; %(then)s",
    "pool slot generation pid kind exit_code signal uptime job_id attempt function next_step",
)
KILLED_FOR_TIMEOUT = warning(
    "killed-for-timeout",
    "%(title)s: worker %(pid)s in slot %(slot)d was killed, since job %(job_id)d "
    "(%(function)s) %(late)s",
    "pool slot generation pid signal uptime job_id attempt function limit",
)
KILLED_FOR_CANCELLATION = info(
    "killed-for-cancellation",
    "%(title)s: worker %(pid)s in slot %(slot)d was killed, since job %(job_id)d "
    "(%(function)s) was cancelled and did not end",
    "pool slot generation pid signal uptime job_id attempt function",
)
KILLED_LATE = warning(
    "killed-late",
    "%(title)s: worker %(pid)s in slot %(slot)d had not ended in time, and was killed by "
    "%(signal)s",
    "pool slot generation pid signal uptime",
)
LAUNCHER_LOST = warning(
    "launcher-lost",
    "the launcher %(pid)d is lost: %(reason)s; its workers run on, and another launcher "
    "starts the next ones",
    "pid reason",
)
NOT_SHARED = warning("not-shared", "%(text)s", "modules threads")
SIGNAL_NOT_SENT = error(
    "signal-not-sent",
    "signal %(signal)d cannot be sent to worker %(pid)d: %(why)s",
    "pid signal",
)
SANDBOX_INCOMPLETE = warning(
    "sandbox-incomplete",
    "%(title)s: its sandbox (strict=False) does not keep everything in: %(missing)s",
    "pool settings",
)
MEMORY_SHARED = warning(
    "memory-shared",
    "%(title)s: preload left memory that all workers share, in spite of fresh=True: "
    "%(memory)s; make it in the initializer",
    "pool memory",
)
CALL_REFUSED = warning(
    "call-refused",
    "%(call)s is refused here (%(why)s): %(instead)s; allow it in the sandbox's filter of "
    "system calls ('asyncpool doctor' tells what else is missing)",
    "call",
)
NOTES_UNREADABLE = error("notes-unreadable", "the notes of a worker cannot be read")
RECORDS_DROPPED = warning(
    "records-dropped",
    "the pool ends; %(records)d log records of its workers are dropped",
    "pool records",
)
LINE = info("line", "%(label)s: %(line)s", "pool slot generation pid stream")
ERROR_LINE = LINE._replace(id="error-line", level=WARNING)

# What their users' code does.

ON_CRASH_FAILED = error(
    "on-crash-failed", "on_crash raised; the pool goes on", "pool slot pid"
)
ON_CRASH_IS_SLOW = warning(
    "on-crash-is-slow",
    "%(callbacks)d callbacks of on_crash still run though the pool ends",
    "pool callbacks",
)
LISTENER_FAILED = error(
    "listener-failed", "the listener %(listener)r failed at %(event)r"
)
READER_FAILED = error("reader-failed", "%(reader)r failed at the end of the pool")
EXECUTOR_FAILED = error("executor-failed", "the thread of %(pool)s failed", "pool")
CALLBACK_FAILED = error("callback-failed", "a callback of %(call)r failed")
SPANS_FAILED = error(
    "spans-failed", "the spans of pool %(pool)s are incomplete", "pool"
)
TRACE_ENDED = error(
    "trace-ended",
    "the trace of %(title)s ends here, since %(path)s cannot be written: %(why)s; the %(what)s "
    "goes on without it",
    "pool path",
)

# Leases.

LEASES_SATURATED = warning(
    "leases-saturated", "a lease keeper is saturated: %(news)s", "leases capacity"
)
LEASES_RELIEVED = info(
    "leases-relieved",
    "a lease keeper is no longer saturated: %(news)s",
    "leases capacity",
)
LEASE_MISSED = warning(
    "lease-missed",
    "lease %(of)r not extended for %(seconds).3g s%(why)s%(others)s",
    "lease seconds",
)
LEASE_GIVEN_UP = warning("lease-given-up", "lease %(of)r %(why)s", "lease")
ON_LOST_FAILED = error("on-lost-failed", "on_lost raised; the keeper goes on", "lease")
KEEPER_ENDS_EARLY = warning(
    "keeper-ends-early", "a lease keeper ends before %(jobs)d of its jobs", "jobs"
)

# Control sockets.

NO_CONTROL = warning(
    "no-control",
    "%(title)s: there is no control socket, so commands cannot reach it: %(why)s; "
    "%(advice)s",
    "pool",
)
NAME_TAKEN = info(
    "name-taken",
    "%(title)s: another one has this name: commands find it as %(which)s",
    "pool which",
)
COMMANDED = info("commanded", "%(title)s: by a command: %(done)s", "pool")
CONTROL_NOT_ACCEPTED = warning(
    "control-not-accepted", "the control socket cannot accept a connection: %(why)s"
)
CONTROL_UNKNOWN_USER = warning(
    "control-unknown-user",
    "the control socket cannot tell whose a connection is: %(why)s",
)
CONTROL_REFUSED = warning(
    "control-refused", "the control socket has refused user %(uid)d", "uid"
)
NODE_LOST = warning(
    "node-lost",
    "%(title)s has lost the agent %(node)s: %(reason)s; it had %(jobs)d jobs (%(functions)s), "
    "%(begun)d of them begun",
    "pool node reason jobs functions begun",
)
NODE_REFUSED = warning(
    "node-refused", "there is no agent on the node %(node)s: %(why)s", "node"
)
CLIENT_REFUSED = warning(
    "client-refused",
    "%(title)s: a client (process %(pid)s) is cut off: %(reason)s; it had %(jobs)d jobs here "
    "(%(functions)s)",
    "pool pid reason jobs functions",
)
CLIENT_LOST = warning(
    "client-lost",
    "%(title)s: a client (process %(pid)s) is gone: %(reason)s; its %(jobs)d jobs are given up "
    "(%(functions)s)",
    "pool pid reason jobs functions",
)
CLIENT_NOT_ACCEPTED = warning(
    "client-not-accepted", "the shared pool cannot accept a connection: %(why)s"
)
COMMAND_FAILED = debug("command-failed", "%(request)s has failed", "action")

# The command that shares a pool, and the logs of commands.

AGENT_SHARING = info(
    "agent-sharing", "sharing %(title)s at %(address)s", "pool address"
)
AGENT_STOPPING = info(
    "agent-stopping",
    "asked to end by %(by)s: finishing jobs; when asked again, it ends at once",
    "by",
)
AGENT_ROLL_REFUSED = warning("agent-roll-refused", "no roll: %(reason)s", "reason")
AGENT_GAVE_UP = error("agent-gave-up", "given up: %(reason)s", "reason")
LOG_UNREAD = warning(
    "log-unread",
    "nobody read the log: %(records)d records are left out here",
    "records",
)
REPEATED = warning("repeated", "%(count)d times more: %(message)s", "count repeated")
