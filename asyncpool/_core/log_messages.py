"""What the logs of pools say, of their lives, their workers, and what goes wrong.

``docs/log-records.md`` tells what each of these means, and which data it has.
"""

from __future__ import annotations

from asyncpool._wire.log_records import debug, error, give_ids, info, warning

# The life of a pool, or of a cluster.

POOL_STARTED = info(
    "%(title)s has started after %(seconds).2f s: %(ready)d of %(workers)d workers are ready"
)
POOL_CLOSING = info("%(title)s closes: %(jobs)d jobs are open%(limit)s")
POOL_DROPPED = warning(
    "%(title)s was dropped without being closed; it finishes its jobs and ends"
)
CLOSE_IS_SLOW = warning(
    "%(title)s has been closing for %(seconds)d s: waiting for %(what)s"
)
JOBS_UNHEARD = warning(
    "%(title)s was closed before %(jobs)d of its jobs were done, and nobody waited for them "
    "(%(names)s)"
)
POOL_CLOSED = info(
    "%(title)s is closed: %(finished)d jobs finished meanwhile, %(failed)d failed, "
    "%(killed)d workers were killed"
)
POOL_BROKEN = error("%(title)s is broken: %(reason)s; %(then)s")
POOL_RECOVERED = info("%(title)s starts workers again")
SUPERVISOR_FAILED = error("the supervisor of %(title)s failed")
SIZE_CHANGED = debug("%(title)s aims at %(workers)d workers")
RESIZED = info("%(title)s is resized: %(size)s")
RESIZE_FAILED = error("%(title)s: the size is to be %(size)s: %(trouble)s")
ROLL_BEGUN = info("%(title)s replaces its %(workers)d workers")
ROLLED = info("%(title)s: %(outcome)s")
ROLL_FAILED = error("%(title)s: %(outcome)s")

# The lives of their workers.

_WORKER = "%(title)s: worker %(pid)s in slot %(slot)d"

WORKER_STARTED = debug(f"{_WORKER} has been started")
WORKER_READY = info(f"{_WORKER} is ready after %(seconds).2f s")
WORKER_RETIRING = info(f"{_WORKER} takes no more %(what)s: %(why)s")
WORKER_ENDED = info(f"{_WORKER} has ended%(why)s")
WORKER_CRASHED = warning("%(title)s: %(crash)s; %(then)s")
KILLED_FOR_TIMEOUT = warning(
    f"{_WORKER} was killed, since job %(job_id)d (%(function)s) %(late)s"
)
KILLED_FOR_CANCELLATION = info(
    f"{_WORKER} was killed, since job %(job_id)d (%(function)s) was cancelled and did not "
    "end"
)
KILLED_LATE = warning(f"{_WORKER} had not ended in time, and was killed by %(signal)s")
LAUNCHER_LOST = warning(
    "the launcher %(pid)d is lost: %(reason)s; its workers run on, and another launcher "
    "starts the next ones"
)
NOT_SHARED = warning("%(text)s")
SIGNAL_NOT_SENT = error("signal %(signal)d cannot be sent to worker %(pid)d: %(why)s")
SANDBOX_INCOMPLETE = warning(
    "%(title)s: its sandbox (strict=False) does not keep everything in: %(missing)s"
)
MEMORY_SHARED = warning(
    "%(title)s: preload left memory that all workers share, in spite of fresh=True: "
    "%(memory)s; make it in the initializer"
)
CALL_REFUSED = warning(
    "%(call)s is refused here (%(why)s): %(instead)s; allow it in the sandbox's filter of "
    "system calls ('asyncpool doctor' tells what else is missing)"
)
NOTES_UNREADABLE = error("the notes of a worker cannot be read")
RECORDS_DROPPED = warning(
    "the pool ends; %(records)d log records of its workers are dropped"
)
LINE = info("%(label)s: %(line)s")
ERROR_LINE = warning(LINE.text)

# What their users' code does.

ON_CRASH_FAILED = error("on_crash raised; the pool goes on")
ON_CRASH_IS_SLOW = warning(
    "%(callbacks)d callbacks of on_crash still run though the pool ends"
)
LISTENER_FAILED = error("the listener %(listener)r failed at %(event)r")
READER_FAILED = error("%(reader)r failed at the end of the pool")
EXECUTOR_FAILED = error("the thread of %(pool)s failed")
CALLBACK_FAILED = error("a callback of %(call)r failed")
SPANS_FAILED = error("the spans of pool %(pool)s are incomplete")
TRACE_ENDED = error(
    "the trace of %(title)s ends here, since %(path)s cannot be written: %(why)s; the %(what)s "
    "goes on without it"
)

# Leases.

LEASES_SATURATED = warning("a lease keeper is saturated: %(news)s")
LEASES_RELIEVED = info("a lease keeper is no longer saturated: %(news)s")
LEASE_MISSED = warning("lease %(of)r not extended for %(seconds).3g s%(why)s%(others)s")
LEASE_GIVEN_UP = warning("lease %(of)r %(why)s")
ON_LOST_FAILED = error("on_lost raised; the keeper goes on")
KEEPER_ENDS_EARLY = warning("a lease keeper ends before %(jobs)d of its jobs")

# Control sockets.

NO_CONTROL = warning(
    "%(title)s: there is no control socket, so commands cannot reach it: %(why)s; "
    "%(advice)s"
)
NAME_TAKEN = info("%(title)s: another one has this name: commands find it as %(which)s")
COMMANDED = info("%(title)s: by a command: %(done)s")
CONTROL_NOT_ACCEPTED = warning("the control socket cannot accept a connection: %(why)s")
CONTROL_UNKNOWN_USER = warning(
    "the control socket cannot tell whose a connection is: %(why)s"
)
CONTROL_REFUSED = warning("the control socket has refused user %(uid)d")
NODE_LOST = warning(
    "%(title)s has lost the agent %(node)s: %(reason)s; it had %(jobs)d jobs (%(functions)s), "
    "%(begun)d of them begun"
)
NODE_REFUSED = warning("there is no agent on the node %(node)s: %(why)s")
CLIENT_REFUSED = warning(
    "%(title)s: a client (process %(pid)s) is cut off: %(reason)s; it had %(jobs)d jobs here "
    "(%(functions)s)"
)
CLIENT_LOST = warning(
    "%(title)s: a client (process %(pid)s) is gone: %(reason)s; its %(jobs)d jobs are given up "
    "(%(functions)s)"
)
CLIENT_NOT_ACCEPTED = warning("the shared pool cannot accept a connection: %(why)s")
COMMAND_FAILED = debug("%(request)s has failed")

# The command that shares a pool, and the logs of commands.

AGENT_SHARING = info("sharing %(title)s at %(address)s")
AGENT_STOPPING = info(
    "asked to end by %(by)s: finishing jobs; when asked again, it ends at once"
)
AGENT_DRAINED = info("%(finished)d jobs of clients finished meanwhile")
AGENT_ROLL_REFUSED = warning("no roll: %(reason)s")
AGENT_GAVE_UP = error("given up: %(reason)s")
LOG_UNREAD = warning("nobody read the log: %(records)d records are left out here")

give_ids(globals())
