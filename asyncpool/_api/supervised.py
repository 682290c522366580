"""What pools and clusters let their owner see of their workers, and do to them."""

from __future__ import annotations

from asyncpool._api.listened import Listened
from asyncpool._runtime.base.arguments import check_int
from asyncpool._runtime.pool.lifecycle import SupervisorRunner


class Supervised(Listened):
    """Something that keeps workers alive: a pool or a cluster."""

    __slots__ = ()

    _life: SupervisorRunner

    def retire(self, slot: int) -> None:
        """Replace the worker in *slot* by a fresh one.

        The old worker goes on until its replacement is ready.  Then it gets nothing new,
        finishes the jobs or connections that it has, and ends.  In a pool it has the ``drain_timeout`` of the
        *worker_limits* for that, in a cluster the *reload_drain_timeout*.  Workers that reach a
        limit are replaced in the same way.

        The call returns at once: the events :class:`asyncpool.events.Retiring` and
        :class:`asyncpool.events.Exited` tell the rest.  It changes nothing for a worker that
        is leaving already.  The worker of a session (:meth:`asyncpool.Pool.worker`) leaves
        when the session is over.

        Raises:
            NoWorkerError: If no worker is ready in *slot*.  The error names the slots with one.
            TypeError: If *slot* is no int.
            ValueError: If *slot* is negative.
            PoolClosedError: If the pool or cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If the pool or cluster was started in another event loop.
        """
        check_int("slot", slot, at_least=0)
        self._life.open().replacement.retire_from(slot)

    def kill(self, slot: int) -> None:
        """Kill the worker in *slot* by SIGKILL, with all processes that it has started.

        A fresh worker takes its place at once.  This is no crash: *on_crash* is not called,
        the restart policy does not count it, and the event is
        :class:`asyncpool.events.Exited`, whose *detail* says that somebody called this.

        The work of the worker ends as with a crash.  A job has another attempt if
        *max_attempts* and *retry_on* (``"crash"``) allow that, or fails with
        :exc:`WorkerCrashedError`.  A session (:meth:`asyncpool.Pool.worker`) has lost its
        worker.  The connections of a worker of a cluster are cut.

        Raises:
            NoWorkerError: If *slot* has no worker that is ready or draining.  The error names
                the slots that have one.
            TypeError: If *slot* is no int.
            ValueError: If it is negative.
            PoolClosedError: If the pool or cluster was never started.
            RuntimeError: If it was started in another event loop.
        """
        check_int("slot", slot, at_least=0)
        self._life.running_here().replacement.kill(slot)
