"""Ping the workers of a pool, and have those killed that do not answer.

The worker's control thread answers, whatever its job does.  So an answer shows that the process
runs, and that its threads get the GIL.  In a worker that serves, the event loop answers, since
without its event loop it serves nobody.
"""

from __future__ import annotations

from asyncpool._core.slots.ping_ledger import PingLedger
from asyncpool._core.slots.slots import UP
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.traffic.stack_dump import StackDumps
from asyncpool._runtime.worker.handle import WorkerHandle


class Pings:
    """The pings of one pool.

    Args:
        state: The pool's state.
        stack_dumps: Ends workers that are silent.
        timeout: Seconds for which a worker may be silent.
    """

    def __init__(
        self, state: PoolState, stack_dumps: StackDumps, timeout: float
    ) -> None:
        self._state = state
        self._stack_dumps = stack_dumps
        self._timeout = timeout
        self._ledger: PingLedger[WorkerHandle] = PingLedger(timeout, state.loop.time())
        self._alarm = Alarm(state.loop, self._look)
        self._alarm.set_at(self._ledger.due)

    def answered(self, handle: WorkerHandle) -> None:
        """Note that a worker has answered a ping.

        Raises:
            ProtocolError: If there was no ping.
        """
        self._ledger.answered(handle)

    def stop(self) -> None:
        """Send no more pings."""
        self._alarm.cancel()

    @decision
    def _look(self, now: float) -> None:
        state = self._state
        for handle in self._ledger.suspects(now):
            handle.catch_up()
            self._ledger.heard(handle, handle.incoming.heard_at)
        up = [
            state.handles[slot.index]
            for slot in state.core.slots
            if slot.state in UP and not slot.hung
        ]
        silent, asked = self._ledger.tick(up, now)
        self._alarm.set_at(self._ledger.due)
        for handle in asked:
            handle.requests.ping()
        for handle in silent:
            text = f"no answer to pings for {self._timeout:g} s"
            self._stack_dumps.hang(handle, text)
