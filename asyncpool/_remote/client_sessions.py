"""Workers that a client has to itself: the calls of a session wait with the client, in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from asyncpool._engine.job import PoolJob
from asyncpool._engine.sessions import SessionWorker
from asyncpool._remote.client_jobs import crash_at_client
from asyncpool._remote.messages import Kind, Message
from asyncpool._remote.node import Node, Questions
from asyncpool._remote.objects import kind_of, load_own
from asyncpool.errors import (
    ProtocolError,
    WorkerCrashedError,
    WorkerGoneError,
)
from asyncpool.events import Crash

if TYPE_CHECKING:
    from asyncpool._remote.client import Client

# How many calls of a session are with the agent: one that runs, and the next one.
_AHEAD = 2


class _Lent:
    """A worker that an agent has lent, and the calls that it has not got."""

    def __init__(self, node: Node, worker: SessionWorker) -> None:
        self.node = node
        self.worker = worker
        self.waiting: deque[PoolJob[Any]] = deque()
        self.sent: set[int] = set()
        self.loading = 0  # the call whose large buffers are on their way

    def error(self) -> WorkerGoneError:
        """Return the error of a call that has no worker any more."""
        worker, cause = self.worker, self.worker.cause
        last = cause.crashes[-1] if isinstance(cause, WorkerCrashedError) else None
        if last is not None:
            worker.crash = last  # which knows the call
        return worker.error()


class ClientSessions:
    """The sessions of one client; it has the methods of a local pool's.

    Args:
        owner: The client.
        questions: Asks for workers.
    """

    def __init__(self, owner: Client, questions: Questions) -> None:
        self._owner = owner
        self._questions = questions
        self._lent: dict[int, _Lent] = {}
        self._asked: list[Node] = []  # for workers, which they have not lent yet

    async def take(
        self,
        worker: SessionWorker,
        timeout: float | None,  # noqa: ASYNC109 - it is only for the wait
    ) -> None:
        """Wait for a *worker*; see :meth:`asyncpool.Pool.worker`."""
        node, number = self._node_to_ask(), self._questions.next_number()
        self._owner.draining.hold(worker)
        self._asked.append(node)
        try:
            slot, pid = await self._questions.ask(
                node, "session", number=number, timeout=timeout
            )
        except BaseException:
            self._owner.draining.release(worker)
            raise
        finally:
            self._asked.remove(node)
        worker.session, worker.slot, worker.pid = number, node.first_slot + slot, pid
        self._lent[number] = _Lent(node, worker)

    def _node_to_ask(self) -> Node:
        """Return the agent with the most workers to spare, as far as this client knows."""

        def taken(node: Node) -> float:
            lent = sum(one.node is node for one in self._lent.values())
            return (lent + self._asked.count(node)) / max(1, node.lanes)

        return min(self._owner.usual_nodes(), key=taken)

    def check(self, session_worker: SessionWorker) -> None:
        """Check that a session still has its worker.

        Raises:
            WorkerGoneError: If it has not.
        """
        if session_worker.gone:
            raise (self._lent.get(session_worker.session) or session_worker).error()

    def enqueue(self, job: PoolJob[Any], session: int) -> None:
        """Let a call wait for its turn."""
        lent = self._lent[session]
        lent.waiting.append(job)
        self._go_on(lent)

    def sent(self, job: PoolJob[Any]) -> None:
        """Hear that a call is on its way that has had to wait for its large buffers."""
        bound = job.options.session
        lent = None if bound is None else self._lent.get(bound.session)
        if lent is not None:
            lent.loading = 0
            self._go_on(lent)

    def ended(self, number: int) -> None:
        """Hear that a job has left its agent, which may be a call of a session."""
        for lent in self._lent.values():
            if number in lent.sent:
                lent.sent.discard(number)
                if lent.loading == number:
                    lent.loading = 0
                self._go_on(lent)

    def _go_on(self, lent: _Lent) -> None:
        # No call overtakes another one.
        while lent.waiting and len(lent.sent) < _AHEAD and not lent.loading:
            job = lent.waiting.popleft()
            if not job.done():
                lent.sent.add(job.id)
                if not self._owner.send_call(lent.node, job):
                    lent.loading = job.id

    def told(self, message: Message) -> None:
        """Hear of a worker; if it is gone, fail the calls that nobody will run.

        Raises:
            ProtocolError: If it cannot be read.
        """
        lent = self._lent.get(message.job)
        match load_own(message.payload):
            case (int(slot), int(pid), bool(gone), crash):
                pass
            case other:
                raise ProtocolError(f"an agent told of a worker by {kind_of(other)}")
        if lent is None:
            return
        worker, slot = lent.worker, lent.node.first_slot + slot
        worker.slot, worker.pid, worker.gone = slot, pid, gone
        worker.crash = None if crash is None else _crash_of(crash, lent.node)
        if gone:
            dropped = [job for job in lent.waiting if not job.done()]
            lent.waiting.clear()
            self.fail(dropped)

    def fail(self, calls: list[PoolJob[Any]]) -> None:
        """Fail calls whose session is over, when it is known why."""
        # The call that ran has an error, too, which is their cause, and must be known first.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._fail, calls)

    def _fail(self, calls: list[PoolJob[Any]]) -> None:
        for job in calls:
            bound = job.options.session
            lent = None if bound is None else self._lent.get(bound.session)
            if lent is not None:  # else they were cancelled with their session
                self._owner.fail(job, lent.error())

    def lost(self, node: Node) -> None:
        """Hear that an agent is gone, and its workers with it."""
        for lent in self._lent.values():
            if lent.node is node:
                lent.worker.gone = True
                lent.waiting.clear()

    def give_back(self, session: int, *, fresh: bool) -> None:
        """Return the worker of *session* to its agent, or have it replaced by a *fresh* one."""
        lent = self._lent.pop(session)
        lent.node.put(Message(Kind.LEAVE, session, options=int(fresh)))
        lent.node.flush(asyncio.get_running_loop().time())


def _crash_of(crash: object, node: Node) -> Crash:
    """Return the crash of a session's worker as the client tells it.

    Raises:
        ProtocolError: If it is none.
    """
    if not isinstance(crash, Crash):
        raise ProtocolError(f"an agent sent {kind_of(crash)} as a crash")
    return crash_at_client(crash, node.first_slot, {})
