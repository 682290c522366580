"""The agents of a client: which of them gets which job, and what a lost one costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncpool._core import log_messages as say
from asyncpool._core.functions import JobTraits
from asyncpool._engine.admission import list_functions
from asyncpool._engine.job import PoolJob
from asyncpool._engine.life_log import NamedLog
from asyncpool._remote.carrier import Carrier, Why, ignore
from asyncpool._remote.node import SLOTS, Node, reason_of
from asyncpool._remote.router import Router, traits_for
from asyncpool.enums import Delivery
from asyncpool.errors import PoolClosedError

if TYPE_CHECKING:
    from asyncpool._remote.client import Client

# So many jobs go out in the middle of an iteration of the loop: whoever submits thousands in one turn
# has the agent begin meanwhile.
_AT_ONCE = 64

# Seconds after which it is looked again how many jobs agents have ended of late.
_LOOK_EVERY = 0.1


class Nodes:
    """The agents of one client.

    Args:
        client: The client.

    Attributes:
        router: Which agent gets which job.
        expected: Whether jobs wait for another agent if there is none.
        lost: How many agents were lost, or could not be used.
        on_lost: Called when an agent is lost; tells whether another one may take its place.
    """

    def __init__(self, client: Client) -> None:
        self._client, self._loop = client, client.loop
        self._registry = client.registry
        self.router = Router()
        self.on_lost: Callable[[], bool] = lambda: False
        self.expected = self._is_limited = self._flush_is_due = False
        self._nodes: dict[int, Node] = {}
        self._numbers = self.lost = 0
        self._unsent = 0  # how many jobs were put since the last flush
        self._looked_at = 0.0
        self._turned = asyncio.Event()

    def __iter__(self) -> Iterator[Node]:
        return iter([*self._nodes.values()])

    @property
    def any(self) -> bool:
        """Whether there is an agent, or one may come."""
        return bool(self._nodes) or self.expected

    @property
    def first(self) -> Node | None:
        """The agent that is asked about the pool."""
        return next(iter(self._nodes.values()), None)

    def with_slot(self, slot: int) -> Node | None:
        """Return the agent whose worker may have that slot."""
        return next((one for one in self if 0 <= slot - one.first_slot < SLOTS), None)

    def of(self, job: int) -> Node | None:
        """Return the agent that has *job*, or is about to get it, if any has."""
        return next((node for node in self._nodes.values() if node.has(job)), None)

    async def next_turn(self) -> None:
        """Wait until an agent has taken jobs, or is lost.

        Cancellation:
            Safe.
        """
        self._turned.clear()
        await self._turned.wait()

    # Agents that come and go.

    def join(self, carrier: Carrier, about: dict[str, Any]) -> None:
        """Use the agent at the other end of *carrier*, which has told this *about* itself."""
        were_limited = self._are_limited
        self._numbers += 1
        node = Node(self._client, self._numbers, carrier, about)
        self._nodes[node.number] = node
        carrier.on_bytes, carrier.on_gone = node.hear, partial(self.lose, node)
        is_ready = self._client.on_join(node)
        node.window.look(self._loop.time(), is_limited=self._are_limited)
        self._send_pairs(self.router.join(node.number, node.window, is_ready=is_ready))
        if self._are_limited and not were_limited:
            self._look()
        self._turned.set()

    def ready(self, node: Node) -> None:
        """Hear that an agent may have jobs that was not ready when it joined."""
        if not node.gone:
            self.router.resume(node.number)
            self.refill(node)

    @property
    def _are_limited(self) -> bool:
        """Whether agents get no more than their windows allow: others may take the jobs."""
        return self._is_limited or self.expected or len(self._nodes) > 1

    def limit_ahead(self) -> None:
        """Let an agent have no more jobs than it can begin soon, also if it is alone."""
        self._is_limited = True
        self._look()

    def _look(self) -> None:
        self._looked_at = self._loop.time()
        for node in self:
            self.refill(node)

    def give_up(self, why: str) -> None:
        """Lose all agents, and expect no other one: what has not begun fails for that, too."""
        self.expected = False
        for node in self:
            self.lose(node, why)
        for job in [*self._registry.jobs.values()]:
            self._client.drop(job)
            self._registry.fail(job, PoolClosedError(why))
        self._client.holds.look()
        self._turned.set()

    def close(self) -> None:
        """Leave the agents."""
        for node in self:
            self._leave(node)
        self._turned.set()

    def _leave(self, node: Node) -> None:
        del self._nodes[node.number]
        node.carrier.on_gone = ignore
        node.carrier.abort()  # what is not sent by now is about jobs that are over
        node.leave()

    def lose(self, node: Node, why: Why = None) -> None:
        """Leave an agent that is gone, or of no use, and find what becomes of its jobs.

        Args:
            node: The agent.
            why: What is known of the reason, if it is not only silent, or its process gone.
        """
        if node.gone:
            return
        client, reason = self._client, reason_of(node, why)
        losses = {number: node.delivery_of(number) for number in node.jobs}
        self._leave(node)
        self.expected = self.on_lost() or self.expected
        pairs = self.router.lose(node.number)
        never = client.sessions.lost(node)
        client.figures.lost(node)
        names = Counter[str]()
        back: dict[int, JobTraits] = {}
        for number, delivery in losses.items():
            job = self._registry.jobs.get(number)
            if job is not None:
                names[job.title] += 1
                if self._goes_on(node, job, delivery, why):
                    back[number] = job.function.traits
                    if job.options.key is not None:
                        back[number] = traits_for(back[number], job.options.key)
        self._send_pairs([*pairs, *self.router.requeue(back)])
        if not self.any:
            never = [*self._registry.jobs.values()]
        for job in never:
            client.drop(job)
            client.ends.fail_lost(node, job, Delivery.NEVER_SENT, why)
        self._registry.leases.worker_gone(node.number)
        client.holds.look()
        self._turned.set()
        if losses or not client.agent_closes:
            self.lost += 1
            begun = [*losses.values()]
            extra = {
                "node": node.name,
                "reason": reason,
                "jobs": len(losses),
                "functions": list_functions(names),
                "begun": begun.count(Delivery.STARTED) + begun.count(Delivery.UNKNOWN),
            }
            NamedLog(client.name, client.title).now(say.NODE_LOST, extra)

    def _goes_on(
        self, node: Node, job: PoolJob[Any], delivery: Delivery, why: Why
    ) -> bool:
        """Tell whether a job of a lost agent goes to another one; end it if not."""
        self._client.waits.forget(job.id)
        ends = self._client.ends
        if delivery in {Delivery.STARTED, Delivery.UNKNOWN}:
            if ends.lose_attempt(node, job, delivery, why):
                return True
        else:
            if delivery is Delivery.SENT:
                self._registry.unassign(job)
            if self.any and job.options.session is None:
                return True
        ends.fail_lost(node, job, delivery, why)
        return False

    # What goes to agents.

    def submit(self, job: PoolJob[Any]) -> None:
        """Have an agent get a job, or put it into the queue."""
        now = self._loop.time()
        if self._are_limited and now - self._looked_at > _LOOK_EVERY:
            self._look()
        options = job.options
        traits = traits_for(job.function.traits, options.key)
        number = self.router.submit(job.id, traits, options.priority)
        if number is not None:
            self.send(self._nodes[number], [job.id])

    def again(self, job: PoolJob[Any]) -> None:
        """Have a job that has left its agent go to one again, before those that wait."""
        traits = traits_for(job.function.traits, job.options.key)
        self._send_pairs(self.router.requeue({job.id: traits}))

    def refill(self, node: Node) -> None:
        """Give an agent the jobs that it may have now."""
        node.window.look(self._loop.time(), is_limited=self._are_limited)
        self.send(node, self.router.refill(node.number))

    def _send_pairs(self, pairs: Iterable[tuple[int, int]]) -> None:
        for number, job in pairs:
            self.send(self._nodes[number], [job])

    def send(self, node: Node, jobs: list[int]) -> None:
        """Have an agent get *jobs*: at once if it has no others, else with the next batch."""
        if not jobs:
            return
        for number in jobs:
            node.send(self._registry.jobs[number])
        self._unsent += len(jobs)
        alone = len(node.window.jobs) + len(node.calls) <= 1 and not self._flush_is_due
        if alone or self._unsent >= _AT_ONCE:
            self._unsent = 0
            node.flush()
        else:
            self.flush_soon()

    def cancel(self, node: Node, job: int) -> None:
        """Tell an agent that nobody wants *job*."""
        if node.cancel(job):
            self.take_back(node, job)
        else:
            self.flush_soon()
        self._client.go_on()

    def take_back(self, node: Node, job: int) -> None:
        """Note that an agent does not get *job*, of which it has not heard."""
        if job in node.calls:
            node.calls.discard(job)
            self._client.sessions.go_on()
        else:
            node.window.remove(job)
            self.refill(node)

    def fence(self, job: PoolJob[Any], number: int, until: float) -> None:
        """Tell an agent until when it may run *job*, whose lease lapses then."""
        if number in self._nodes:
            self._nodes[number].fence(job, until)

    def flush_soon(self) -> None:
        """Send what was put, at the end of this iteration of the loop."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due, self._unsent = False, 0
        for node in self:
            node.flush()

    def heard(self, node: Node) -> None:
        """Take note that an agent has said something."""
        if not node.gone:
            self.refill(node)
            node.flush()
        self._turned.set()
        self._client.holds.look()
