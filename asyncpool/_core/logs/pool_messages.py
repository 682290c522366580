"""What the logs of pools say, of their lives, their workers, and what goes wrong.

``docs/log-records.md`` tells what each of these means, and what to do about it; a test holds the
two to each other.
"""

from __future__ import annotations

from asyncpool._core.logs import DEBUG, ERROR, INFO, WARNING, LogMessage

# The life of a pool, or of a cluster.

POOL_STARTED = LogMessage(
    "pool-started",
    INFO,
    "%(title)s has started after %(seconds).2f s: %(ready)d of %(workers)d workers are ready",
    "pool workers ready seconds",
)
POOL_CLOSING = LogMessage(
    "pool-closing",
    INFO,
    "%(title)s closes: %(jobs)d jobs are open%(limit)s",
    "pool jobs finish timeout",
)
POOL_DROPPED = LogMessage(
    "pool-dropped",
    WARNING,
    "%(title)s was dropped without being closed; it finishes its jobs and ends",
    "pool",
)
CLOSE_IS_SLOW = LogMessage(
    "close-is-slow",
    WARNING,
    "%(title)s has been closing for %(seconds)d s: waiting for %(what)s",
    "pool seconds jobs queued",
)
JOBS_UNHEARD = LogMessage(
    "jobs-unheard",
    WARNING,
    "%(title)s was closed before %(which)s done, and nobody waited for %(them)s (%(names)s)",
    "pool jobs",
)
POOL_CLOSED = LogMessage(
    "pool-closed",
    INFO,
    "%(title)s is closed: %(finished)d jobs finished meanwhile, %(failed)d failed, "
    "%(killed)d workers were killed",
    "pool finished failed killed",
)
POOL_BROKEN = LogMessage(
    "pool-broken",
    ERROR,
    "%(title)s is broken: %(reason)s; %(then)s",
    "pool reason retry_after",
)
POOL_RECOVERED = LogMessage(
    "pool-recovered", INFO, "%(title)s starts workers again", "pool slot"
)
SUPERVISOR_FAILED = LogMessage(
    "supervisor-failed", ERROR, "the supervisor of %(title)s failed", "pool"
)
SIZE_CHANGED = LogMessage(
    "size-changed", DEBUG, "%(title)s aims at %(workers)d workers", "pool workers"
)
RESIZED = LogMessage(
    "resized",
    INFO,
    "%(title)s is resized: %(size)s",
    "pool least most",
)
RESIZE_FAILED = LogMessage(
    "resize-failed",
    ERROR,
    "%(title)s: the size is to be %(size)s: %(trouble)s",
    "pool least most slot",
)
ROLL_BEGUN = LogMessage(
    "roll-begun", INFO, "%(title)s replaces its %(workers)d workers", "pool workers"
)
ROLLED = LogMessage(
    "rolled", INFO, "%(title)s: %(outcome)s", "pool replaced filled seconds"
)
ROLL_FAILED = LogMessage(
    "roll-failed",
    ERROR,
    "%(title)s: %(outcome)s",
    "pool replaced filled seconds reason",
)

# The lives of their workers.

WORKER_STARTED = LogMessage(
    "worker-started",
    DEBUG,
    "%(title)s: worker %(pid)d in slot %(slot)d has been started",
    "pool slot generation pid",
)
WORKER_READY = LogMessage(
    "worker-ready",
    INFO,
    "%(title)s: worker %(pid)d in slot %(slot)d is ready after %(seconds).2f s",
    "pool slot generation pid seconds",
)
WORKER_RETIRING = LogMessage(
    "worker-retiring",
    INFO,
    "%(title)s: worker %(pid)s in slot %(slot)d takes no more %(what)s: %(why)s",
    "pool slot generation pid reason",
)
WORKER_ENDED = LogMessage(
    "worker-ended",
    INFO,
    "%(title)s: worker %(pid)s in slot %(slot)d has ended%(why)s",
    "pool slot generation pid reason exit_code signal uptime",
)
WORKER_CRASHED = LogMessage(
    "worker-crashed",
    WARNING,
    "%(title)s: %(crash)s; %(then)s",
    "pool slot generation pid kind exit_code signal uptime job_id attempt function next_step",
)
KILLED_FOR_TIMEOUT = LogMessage(
    "killed-for-timeout",
    WARNING,
    "%(title)s: worker %(pid)s in slot %(slot)d was killed, since job %(job_id)d "
    "(%(function)s) %(late)s",
    "pool slot generation pid signal uptime job_id attempt function limit",
)
KILLED_FOR_CANCELLATION = LogMessage(
    "killed-for-cancellation",
    INFO,
    "%(title)s: worker %(pid)s in slot %(slot)d was killed, since job %(job_id)d "
    "(%(function)s) was cancelled and did not end",
    "pool slot generation pid signal uptime job_id attempt function",
)
KILLED_LATE = LogMessage(
    "killed-late",
    WARNING,
    "%(title)s: worker %(pid)s in slot %(slot)d had not ended in time, and was killed by "
    "%(signal)s",
    "pool slot generation pid signal uptime",
)
LAUNCHER_LOST = LogMessage(
    "launcher-lost",
    WARNING,
    "the launcher %(pid)d is lost: %(reason)s; its workers run on, and another launcher "
    "starts the next ones",
    "pid reason",
)
NOT_SHARED = LogMessage("not-shared", WARNING, "%(text)s", "modules threads")
SIGNAL_NOT_SENT = LogMessage(
    "signal-not-sent",
    ERROR,
    "signal %(signal)d cannot be sent to worker %(pid)d: %(why)s",
    "pid signal",
)
SANDBOX_INCOMPLETE = LogMessage(
    "sandbox-incomplete",
    WARNING,
    "%(title)s: its sandbox (strict=False) does not keep everything in: %(missing)s",
    "pool settings",
)
MEMORY_SHARED = LogMessage(
    "memory-shared",
    WARNING,
    "%(title)s: preload left memory that all workers share, in spite of fresh=True: "
    "%(memory)s; make it in the initializer",
    "pool memory",
)
CALL_REFUSED = LogMessage(
    "call-refused",
    WARNING,
    "%(call)s is refused here (%(why)s): %(instead)s; allow it in the sandbox's filter of "
    "system calls ('asyncpool doctor' tells what else is missing)",
    "call",
)
NOTES_UNREADABLE = LogMessage(
    "notes-unreadable", ERROR, "the notes of a worker cannot be read"
)
RECORDS_DROPPED = LogMessage(
    "records-dropped",
    WARNING,
    "the pool ends; %(records)d log records of its workers are dropped",
    "pool records",
)
LINE = LogMessage(
    "line", INFO, "%(label)s: %(line)s", "pool slot generation pid stream"
)
ERROR_LINE = LINE._replace(id="error-line", level=WARNING)

# What their users' code does.

ON_CRASH_FAILED = LogMessage(
    "on-crash-failed", ERROR, "on_crash raised; the pool goes on", "pool slot pid"
)
ON_CRASH_IS_SLOW = LogMessage(
    "on-crash-is-slow",
    WARNING,
    "%(callbacks)d callbacks of on_crash still run though the pool ends",
    "pool callbacks",
)
LISTENER_FAILED = LogMessage(
    "listener-failed", ERROR, "the listener %(listener)r failed at %(event)r"
)
READER_FAILED = LogMessage(
    "reader-failed", ERROR, "%(reader)r failed at the end of the pool"
)
EXECUTOR_FAILED = LogMessage(
    "executor-failed", ERROR, "the thread of %(pool)s failed", "pool"
)
CALLBACK_FAILED = LogMessage("callback-failed", ERROR, "a callback of %(call)r failed")
SPANS_FAILED = LogMessage(
    "spans-failed", ERROR, "the spans of pool %(pool)s are incomplete", "pool"
)
TRACE_ENDED = LogMessage(
    "trace-ended",
    ERROR,
    "the trace of %(title)s ends here, since %(path)s cannot be written: %(why)s; the %(what)s "
    "goes on without it",
    "pool path",
)

# Leases.

LEASES_SATURATED = LogMessage(
    "leases-saturated",
    WARNING,
    "a lease keeper is saturated: %(news)s",
    "leases capacity",
)
LEASES_RELIEVED = LogMessage(
    "leases-relieved",
    INFO,
    "a lease keeper is no longer saturated: %(news)s",
    "leases capacity",
)
LEASE_MISSED = LogMessage(
    "lease-missed",
    WARNING,
    "lease %(of)r not extended for %(seconds).3g s%(why)s%(others)s",
    "lease seconds",
)
LEASE_GIVEN_UP = LogMessage("lease-given-up", WARNING, "lease %(of)r %(why)s", "lease")
ON_LOST_FAILED = LogMessage(
    "on-lost-failed", ERROR, "on_lost raised; the keeper goes on", "lease"
)
KEEPER_ENDS_EARLY = LogMessage(
    "keeper-ends-early",
    WARNING,
    "a lease keeper ends before %(jobs)d of its jobs",
    "jobs",
)

# Control sockets.

NO_CONTROL = LogMessage(
    "no-control",
    WARNING,
    "%(title)s: there is no control socket, so commands cannot reach it: %(why)s; "
    "%(advice)s",
    "pool",
)
NAME_TAKEN = LogMessage(
    "name-taken",
    INFO,
    "%(title)s: another one has this name: commands find it as %(which)s",
    "pool which",
)
COMMANDED = LogMessage("commanded", INFO, "%(title)s: by a command: %(done)s", "pool")
CONTROL_NOT_ACCEPTED = LogMessage(
    "control-not-accepted",
    WARNING,
    "the control socket cannot accept a connection: %(why)s",
)
CONTROL_UNKNOWN_USER = LogMessage(
    "control-unknown-user",
    WARNING,
    "the control socket cannot tell whose a connection is: %(why)s",
)
CONTROL_REFUSED = LogMessage(
    "control-refused",
    WARNING,
    "the control socket has refused user %(uid)d",
    "uid",
)
NODE_LOST = LogMessage(
    "node-lost",
    WARNING,
    "%(title)s has lost the agent %(node)s: %(reason)s; it had %(jobs)d jobs, %(begun)d of them "
    "begun",
    "pool node reason jobs begun",
)
NODE_REFUSED = LogMessage(
    "node-refused",
    WARNING,
    "there is no agent on the node %(node)s: %(why)s",
    "node",
)
CLIENT_REFUSED = LogMessage(
    "client-refused",
    WARNING,
    "%(title)s: a client (process %(pid)s) is cut off: %(reason)s; it had %(jobs)d jobs here",
    "pool pid reason jobs",
)
CLIENT_LOST = LogMessage(
    "client-lost",
    WARNING,
    "%(title)s: a client (process %(pid)s) is gone: %(reason)s; its %(jobs)d jobs are given up",
    "pool pid reason jobs",
)
CLIENT_NOT_ACCEPTED = LogMessage(
    "client-not-accepted",
    WARNING,
    "the shared pool cannot accept a connection: %(why)s",
)
COMMAND_FAILED = LogMessage("command-failed", DEBUG, "%(request)s has failed", "action")

# The command that shares a pool, and the logs of commands.

AGENT_SHARING = LogMessage(
    "agent-sharing", INFO, "sharing %(title)s at %(address)s", "pool address"
)
AGENT_STOPPING = LogMessage(
    "agent-stopping",
    INFO,
    "asked to end by %(by)s: finishing jobs; when asked again, it ends at once",
    "by",
)
AGENT_ROLL_REFUSED = LogMessage(
    "agent-roll-refused", WARNING, "no roll: %(reason)s", "reason"
)
AGENT_GAVE_UP = LogMessage("agent-gave-up", ERROR, "given up: %(reason)s", "reason")
LOG_UNREAD = LogMessage(
    "log-unread",
    WARNING,
    "nobody read the log: %(records)d records are left out here",
    "records",
)
REPEATED = LogMessage(
    "repeated", WARNING, "%(count)d times more: %(message)s", "count repeated"
)
