"""Workers that a client has to itself: the calls of a session wait with the client, in their order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from asyncpool._engine.job import PoolJob
from asyncpool._engine.sessions import SessionWorker
from asyncpool._remote.messages import Kind, Message
from asyncpool._remote.node import Node
from asyncpool.errors import WorkerCrashedError
from asyncpool.events import Crash

if TYPE_CHECKING:
    from asyncpool._remote.client import Client

# How many calls of a session are with the agent: one that runs, and the next one.
_AHEAD = 2


class _Lent:
    """A worker that an agent has lent, the calls that it has got, and those that wait for it."""

    def __init__(self, node: Node, worker: SessionWorker) -> None:
        self.node, self.worker = node, worker
        self.waiting: deque[PoolJob[Any]] = deque()
        self.sent: set[int] = set()


class ClientSessions:
    """The sessions of one client; it has the methods of a local pool's.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lent: dict[int, _Lent] = {}
        self._asked: list[Node] = []  # for workers, which they have not lent yet

    async def take(
        self,
        worker: SessionWorker,
        timeout: float | None,  # noqa: ASYNC109 - it is only for the wait
    ) -> None:
        """Wait for a *worker*; see :meth:`asyncpool.Pool.worker`."""
        node, number = self._node_to_ask(), self._client.next_question()
        self._client.holds.hold(worker)
        self._asked.append(node)
        try:
            slot, pid = await node.ask("session", number=number, timeout=timeout)
        except BaseException:
            self._client.holds.release(worker)
            raise
        finally:
            self._asked.remove(node)
        worker.session, worker.slot, worker.pid = number, node.first_slot + slot, pid
        self._lent[number] = _Lent(node, worker)

    def _node_to_ask(self) -> Node:
        """Return the agent with the most workers to spare, as far as this client knows."""

        def taken(node: Node) -> float:
            lent = sum(one.node is node for one in self._lent.values())
            return (lent + self._asked.count(node)) / max(1, node.window.lanes)

        return min(self._client.usual_nodes(), key=taken)

    def check(self, worker: SessionWorker) -> None:
        """Check that a session still has its worker.

        Raises:
            WorkerGoneError: If it has not.
        """
        if worker.gone:
            raise worker.error()

    def enqueue(self, job: PoolJob[Any], session: int) -> None:
        """Let a call wait for its turn."""
        lent = self._lent[session]
        lent.waiting.append(job)
        self._go_on(lent)

    def go_on(self) -> None:
        """Send the next calls: an agent is done with one, or has got its large parts."""
        for lent in self._lent.values():
            self._go_on(lent)

    def _go_on(self, lent: _Lent) -> None:
        node = lent.node
        lent.sent &= node.calls
        # No call overtakes another one whose large parts are on their way.
        while (
            lent.waiting
            and len(lent.sent) < _AHEAD
            and lent.sent.isdisjoint(node.loading)
        ):
            job = lent.waiting.popleft()
            if not job.done():
                lent.sent.add(job.id)
                node.calls.add(job.id)
                self._client.nodes.send(node, [job.id])

    def worker_gone(
        self, hold: object, crash: Crash | None, job: PoolJob[Any] | None = None
    ) -> None:
        """Note that the worker of a session is gone, and fail *job*, which it has not begun."""
        assert isinstance(hold, SessionWorker)
        hold.gone, hold.crash = True, crash or hold.crash
        if job is not None:
            # The call that ran has an error, too, which is the cause, and must be known first.
            loop = self._client.loop
            loop.call_soon(loop.call_soon, self._fail, job, hold)

    def _fail(self, job: PoolJob[Any], worker: SessionWorker) -> None:
        if isinstance(worker.cause, WorkerCrashedError):
            worker.crash = worker.cause.crashes[-1]  # which knows the call
        self._client.fail(job, worker.error())

    def lost(self, node: Node) -> list[PoolJob[Any]]:
        """Note that an agent is gone, and its workers with it; return calls that it has not got."""
        lost = [lent for lent in self._lent.values() if lent.node is node]
        calls = [job for lent in lost for job in lent.waiting if not job.done()]
        for lent in lost:
            lent.worker.gone = True
            lent.waiting.clear()
        return calls

    def give_back(self, session: int, *, fresh: bool) -> None:
        """Return the worker of *session* to its agent, or have it replaced by a *fresh* one."""
        node = self._lent.pop(session).node
        node.put(Message(Kind.LEAVE, session, options=int(fresh)))
        node.flush()
