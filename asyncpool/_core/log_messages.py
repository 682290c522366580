"""What the logs of pools say, of their lives, their workers, and what goes wrong.

``docs/log-records.md`` tells what each of these means, and which data it has.
"""

from __future__ import annotations

from asyncpool._wire.log_records import WARNING, debug, error, info, warning

# The life of a pool, or of a cluster.

POOL_STARTED = info(
    "pool-started",
    "%(title)s has started after %(seconds).2f s: %(ready)d of %(workers)d workers are ready",
)
POOL_CLOSING = info("pool-closing", "%(title)s closes: %(jobs)d jobs are open%(limit)s")
POOL_DROPPED = warning(
    "pool-dropped",
    "%(title)s was dropped without being closed; it finishes its jobs and ends",
)
CLOSE_IS_SLOW = warning(
    "close-is-slow",
    "%(title)s has been closing for %(seconds)d s: waiting for %(what)s",
)
JOBS_UNHEARD = warning(
    "jobs-unheard",
    "%(title)s was closed before %(jobs)d of its jobs were done, and nobody waited for them "
    "(%(names)s)",
)
POOL_CLOSED = info(
    "pool-closed",
    "%(title)s is closed: %(finished)d jobs finished meanwhile, %(failed)d failed, "
    "%(killed)d workers were killed",
)
POOL_BROKEN = error("pool-broken", "%(title)s is broken: %(reason)s; %(then)s")
POOL_RECOVERED = info("pool-recovered", "%(title)s starts workers again")
SUPERVISOR_FAILED = error("supervisor-failed", "the supervisor of %(title)s failed")
SIZE_CHANGED = debug("size-changed", "%(title)s aims at %(workers)d workers")
RESIZED = info("resized", "%(title)s is resized: %(size)s")
RESIZE_FAILED = error(
    "resize-failed", "%(title)s: the size is to be %(size)s: %(trouble)s"
)
ROLL_BEGUN = info("roll-begun", "%(title)s replaces its %(workers)d workers")
ROLLED = info("rolled", "%(title)s: %(outcome)s")
ROLL_FAILED = error("roll-failed", "%(title)s: %(outcome)s")

# The lives of their workers.

_WORKER = "%(title)s: worker %(pid)s in slot %(slot)d"

WORKER_STARTED = debug("worker-started", f"{_WORKER} has been started")
WORKER_READY = info("worker-ready", f"{_WORKER} is ready after %(seconds).2f s")
WORKER_RETIRING = info("worker-retiring", f"{_WORKER} takes no more %(what)s: %(why)s")
WORKER_ENDED = info("worker-ended", f"{_WORKER} has ended%(why)s")
WORKER_CRASHED = warning("worker-crashed", "%(title)s: %(crash)s; %(then)s")
KILLED_FOR_TIMEOUT = warning(
    "killed-for-timeout",
    f"{_WORKER} was killed, since job %(job_id)d (%(function)s) %(late)s",
)
KILLED_FOR_CANCELLATION = info(
    "killed-for-cancellation",
    f"{_WORKER} was killed, since job %(job_id)d (%(function)s) was cancelled and did not "
    "end",
)
KILLED_LATE = warning(
    "killed-late", f"{_WORKER} had not ended in time, and was killed by %(signal)s"
)
LAUNCHER_LOST = warning(
    "launcher-lost",
    "the launcher %(pid)d is lost: %(reason)s; its workers run on, and another launcher "
    "starts the next ones",
)
NOT_SHARED = warning("not-shared", "%(text)s")
SIGNAL_NOT_SENT = error(
    "signal-not-sent", "signal %(signal)d cannot be sent to worker %(pid)d: %(why)s"
)
SANDBOX_INCOMPLETE = warning(
    "sandbox-incomplete",
    "%(title)s: its sandbox (strict=False) does not keep everything in: %(missing)s",
)
MEMORY_SHARED = warning(
    "memory-shared",
    "%(title)s: preload left memory that all workers share, in spite of fresh=True: "
    "%(memory)s; make it in the initializer",
)
CALL_REFUSED = warning(
    "call-refused",
    "%(call)s is refused here (%(why)s): %(instead)s; allow it in the sandbox's filter of "
    "system calls ('asyncpool doctor' tells what else is missing)",
)
NOTES_UNREADABLE = error("notes-unreadable", "the notes of a worker cannot be read")
RECORDS_DROPPED = warning(
    "records-dropped",
    "the pool ends; %(records)d log records of its workers are dropped",
)
LINE = info("line", "%(label)s: %(line)s")
ERROR_LINE = LINE._replace(id="error-line", level=WARNING)

# What their users' code does.

ON_CRASH_FAILED = error("on-crash-failed", "on_crash raised; the pool goes on")
ON_CRASH_IS_SLOW = warning(
    "on-crash-is-slow",
    "%(callbacks)d callbacks of on_crash still run though the pool ends",
)
LISTENER_FAILED = error(
    "listener-failed", "the listener %(listener)r failed at %(event)r"
)
READER_FAILED = error("reader-failed", "%(reader)r failed at the end of the pool")
EXECUTOR_FAILED = error("executor-failed", "the thread of %(pool)s failed")
CALLBACK_FAILED = error("callback-failed", "a callback of %(call)r failed")
SPANS_FAILED = error("spans-failed", "the spans of pool %(pool)s are incomplete")
TRACE_ENDED = error(
    "trace-ended",
    "the trace of %(title)s ends here, since %(path)s cannot be written: %(why)s; the %(what)s "
    "goes on without it",
)

# Leases.

LEASES_SATURATED = warning("leases-saturated", "a lease keeper is saturated: %(news)s")
LEASES_RELIEVED = info(
    "leases-relieved", "a lease keeper is no longer saturated: %(news)s"
)
LEASE_MISSED = warning(
    "lease-missed", "lease %(of)r not extended for %(seconds).3g s%(why)s%(others)s"
)
LEASE_GIVEN_UP = warning("lease-given-up", "lease %(of)r %(why)s")
ON_LOST_FAILED = error("on-lost-failed", "on_lost raised; the keeper goes on")
KEEPER_ENDS_EARLY = warning(
    "keeper-ends-early", "a lease keeper ends before %(jobs)d of its jobs"
)

# Control sockets.

NO_CONTROL = warning(
    "no-control",
    "%(title)s: there is no control socket, so commands cannot reach it: %(why)s; "
    "%(advice)s",
)
NAME_TAKEN = info(
    "name-taken", "%(title)s: another one has this name: commands find it as %(which)s"
)
COMMANDED = info("commanded", "%(title)s: by a command: %(done)s")
CONTROL_NOT_ACCEPTED = warning(
    "control-not-accepted", "the control socket cannot accept a connection: %(why)s"
)
CONTROL_UNKNOWN_USER = warning(
    "control-unknown-user",
    "the control socket cannot tell whose a connection is: %(why)s",
)
CONTROL_REFUSED = warning(
    "control-refused", "the control socket has refused user %(uid)d"
)
NODE_LOST = warning(
    "node-lost",
    "%(title)s has lost the agent %(node)s: %(reason)s; it had %(jobs)d jobs (%(functions)s), "
    "%(begun)d of them begun",
)
NODE_REFUSED = warning(
    "node-refused", "there is no agent on the node %(node)s: %(why)s"
)
CLIENT_REFUSED = warning(
    "client-refused",
    "%(title)s: a client (process %(pid)s) is cut off: %(reason)s; it had %(jobs)d jobs here "
    "(%(functions)s)",
)
CLIENT_LOST = warning(
    "client-lost",
    "%(title)s: a client (process %(pid)s) is gone: %(reason)s; its %(jobs)d jobs are given up "
    "(%(functions)s)",
)
CLIENT_NOT_ACCEPTED = warning(
    "client-not-accepted", "the shared pool cannot accept a connection: %(why)s"
)
COMMAND_FAILED = debug("command-failed", "%(request)s has failed")

# The command that shares a pool, and the logs of commands.

AGENT_SHARING = info("agent-sharing", "sharing %(title)s at %(address)s")
AGENT_STOPPING = info(
    "agent-stopping",
    "asked to end by %(by)s: finishing jobs; when asked again, it ends at once",
)
AGENT_ROLL_REFUSED = warning("agent-roll-refused", "no roll: %(reason)s")
AGENT_GAVE_UP = error("agent-gave-up", "given up: %(reason)s")
LOG_UNREAD = warning(
    "log-unread", "nobody read the log: %(records)d records are left out here"
)
REPEATED = warning("repeated", "%(count)d times more: %(message)s")
