"""The agents of a client: what goes to them, and what comes from them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from asyncpool._core import log_messages as say
from asyncpool._engine.admission import list_functions
from asyncpool._engine.job import ChunkJob, PoolJob, StreamJob
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.loop import Alarm
from asyncpool._remote import objects
from asyncpool._remote.carrier import Carrier, beat_every, ignore, node_timeout
from asyncpool._remote.client_jobs import SLOTS, SignsOfLife, Silence, Trust
from asyncpool._remote.job_ends import frame_of
from asyncpool._remote.lent_memory import LentMemory
from asyncpool._remote.lent_parts import LENT
from asyncpool._remote.messages import PLAIN, Kind, Message, pack_parts, unpack_numbers
from asyncpool._remote.node import Node, Questions
from asyncpool._remote.objects import kind_of, load_own
from asyncpool._remote.reliable_link import MAX_PIECE, Batch
from asyncpool._remote.stored_calls import STORED, StoredCall, StoringCarrier
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.page import Beat
from asyncpool.enums import Delivery
from asyncpool.errors import PoolClosedError, ProtocolError
from asyncpool.events import Broken, Crash, Crashed, Event

if TYPE_CHECKING:
    from asyncpool._remote.client import Client


_ENDS = frozenset((Kind.VALUE, Kind.ERROR, Kind.FAILED, Kind.DROPPED))
_MAY_BE_LENT = frozenset((Kind.VALUE, Kind.ITEM))
_RAN = frozenset((Kind.VALUE, Kind.ERROR))  # they have begun, heard of or not


class NodeNews:
    """Hears what the agents of one client tell.

    Args:
        client: The client.
        questions: Hear of answers.
    """

    def __init__(self, client: Client, questions: Questions) -> None:
        self._client = client
        self._jobs, self._registry = client.jobs, client.registry
        self._questions = questions
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[Kind, Callable[[Node, Message], object]] = {
            Kind.BEGAN: self._on_began,
            Kind.ITEM: self._on_item,
            Kind.HEARTBEAT: self._on_heartbeat,
            Kind.FREE: self._on_free,
            Kind.WORKER: self._on_worker,
            Kind.ANSWER: self._on_answer,
            Kind.EVENT: self._on_event,
            Kind.CLOSING: self._on_closing,
            Kind.LANES: self._on_lanes,
            Kind.FOUND: self._on_found,
        }

    def on_message(self, node: Node, message: Message) -> None:
        kind = message.kind
        if message.payload.startswith(LENT) and kind in _MAY_BE_LENT:
            # At once: whoever drops what was lent gives it back by that.
            message = message._replace(payload=node.borrow(message.payload))
        if kind in _ENDS:
            self._on_end(node, message)
            return
        handler = self._handlers.get(kind)
        if handler is None:
            raise ProtocolError(f"an agent sent a {kind.name}")
        handler(node, message)

    def _on_end(self, node: Node, message: Message) -> None:
        if not self._jobs.ended(node.number, message.job):
            return
        node.ended(message.job)
        self._client.waits.forget(message.job)
        self._client.sessions.ended(message.job)
        job = self._registry.jobs.get(message.job)
        if job is None:
            return  # its caller has given it up
        try:
            self._note_attempt(node, job, message)
            self._client.ends.on_end(job, message, node.first_slot)
        except BaseException as error:
            # The agent is lost for that, and its jobs with it, of which this is none any more.
            if not job.done():
                heard = Silence(
                    0.0, 0.0, error if isinstance(error, Exception) else None
                )
                self._client.ends.fail_lost(job, node, heard, Delivery.STARTED)
            if isinstance(error, ProtocolError) or not isinstance(error, Exception):
                raise
            # An error of asyncpool's own may have attributes that no agent gives it.
            raise ProtocolError(f"the end of {job!r} cannot be read") from error

    def _note_attempt(self, node: Node, job: PoolJob[Any], message: Message) -> None:
        watch, now = self._registry.events, self._loop.time()
        if message.place and (self._client.hub.ends_heard or self._client.hub.tracers):
            watch.attempted(job, node.attempt_of(job, message, now))
        elif self._client.hub.ends_heard and message.kind in _RAN:
            # It was on its way before anybody listened.
            watch.running([job], node.first_slot, now)

    def _on_began(self, node: Node, message: Message) -> None:
        now = self._loop.time()
        node.acknowledge_begins()
        for number in self._jobs.began(node.number, unpack_numbers(message.payload)):
            self._client.waits.forget(number)
            job = self._registry.jobs.get(number)
            if job is not None and self._client.hub.ends_heard:
                # Its end tells which slot of the node it is in.
                self._registry.events.running([job], node.first_slot, now)

    def _on_item(self, node: Node, message: Message) -> None:
        job = self._own(node, message)
        if job is None:
            return
        if not isinstance(job, StreamJob):
            raise ProtocolError(f"an agent sent an item of {job!r}")
        job.receive(frame_of(job, message))

    def _on_heartbeat(self, node: Node, message: Message) -> None:
        job = self._own(node, message)
        if job is not None and not job.done():
            log, now = job.listen(), self._loop.time()
            beat = Beat(log.heard + 1, job.id, job.attempt, now, message.payload)
            log.add(beat, now)

    def _own(self, node: Node, message: Message) -> PoolJob[Any] | None:
        """Return the job of a message, if it is open and that agent has it."""
        if self._jobs.agent_of(message.job) != node.number:
            return None
        return self._registry.jobs.get(message.job)

    def _on_free(self, node: Node, message: Message) -> None:
        del node
        self._registry.leases.left_worker(message.job)

    def _on_worker(self, node: Node, message: Message) -> None:
        del node
        self._client.sessions.told(message)

    def _on_answer(self, node: Node, message: Message) -> None:
        del node
        self._questions.answered(message)

    def _on_closing(self, node: Node, message: Message) -> None:
        del message
        self._jobs.leave(node.number)
        self._client.on_closing()

    def _on_lanes(self, node: Node, message: Message) -> None:
        if message.priority < 1:
            raise ProtocolError(f"an agent said that it has {message.priority} lanes")
        node.window.lanes = message.priority

    def _on_found(self, node: Node, message: Message) -> None:
        job = self._own(node, message)
        if job is None:
            return
        if not isinstance(job, ChunkJob):
            raise ProtocolError(f"an agent told which items of {job!r} are done")
        objects.find(job, message.payload)

    def _on_event(self, node: Node, message: Message) -> None:
        event: Any = load_own(message.payload)
        if not isinstance(event, Event):
            raise ProtocolError(f"an agent told of {kind_of(event)} as an event")
        self._client.hub.publish(_at_client(event, node.first_slot))


def _at_client(event: Event, first_slot: int) -> Event:
    """Return what an agent's pool has told of itself, with the client's numbers of slots."""
    told: Any = event
    changes: dict[str, Any] = {}
    if getattr(told, "slot", None) is not None:
        changes["slot"] = first_slot + told.slot
    if isinstance(event, Crashed):
        changes["crash"] = _moved(event.crash, first_slot)
    if isinstance(event, Broken):
        changes["crashes"] = tuple(_moved(one, first_slot) for one in event.crashes)
    return replace(told, **changes) if first_slot and changes else event


def _moved(crash: Crash, first_slot: int) -> Crash:
    return replace(crash, slot=first_slot + crash.slot)


class Loads:
    """The loads of one client that take more than a moment.

    Args:
        loaded: Called with an agent, a job, and what the agent gets as its call.
    """

    def __init__(self, loaded: Callable[[Node, PoolJob[Any], bytes], object]) -> None:
        self._loaded = loaded
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def __contains__(self, job: int) -> bool:
        return job in self._tasks

    def begin(self, node: Node, job: PoolJob[Any]) -> bytes | None:
        """Return what the agent gets as the call of *job*; ``None`` if that comes later."""
        payload, lent = job.payload, node.carrier.lent
        assert isinstance(payload, OutOfBandPickle)
        if lent is None:
            return pack_parts(payload)
        at_once = lent.lend_at_once(payload)
        if at_once is None:
            self._tasks[job.id] = asyncio.get_running_loop().create_task(
                self._load(lent, node, job, payload), name="asyncpool large call"
            )
        return at_once

    async def _load(
        self, lent: LentMemory, node: Node, job: PoolJob[Any], payload: OutOfBandPickle
    ) -> None:
        task = asyncio.current_task()
        packed = await lent.lend(payload, lambda: self._tasks.get(job.id) is task)
        if self._tasks.get(job.id) is task:
            del self._tasks[job.id]
            self._loaded(node, job, packed or pack_parts(payload))

    def give_up(self, job: int) -> bool:
        """Forget a job that is on its way, and tell whether it was."""
        return self._tasks.pop(job, None) is not None

    def close(self) -> None:
        """Forget all."""
        self._tasks.clear()


# So many jobs go out in the middle of a turn of the loop: whoever submits thousands in one turn
# has the agent begin meanwhile.
_AT_ONCE = 64


def no_agent(title: str) -> PoolClosedError:
    """Return the error of whoever comes too late; *title* is what errors call the pool."""
    return PoolClosedError(f"{title} is closed, or its agent is gone")


class Nodes:
    """The agents of one client.

    Args:
        client: The client.
        questions: Hear of answers.
        patience: Seconds after which an agent is lost that is not heard.

    Attributes:
        expected: Whether jobs wait for another agent if there is none.
        lost: How many agents were lost, or could not be used.
    """

    def __init__(
        self, client: Client, questions: Questions, patience: float | None
    ) -> None:
        self.expected = False
        self._is_limited = False
        self._client = client
        self._jobs, self._registry = client.jobs, client.registry
        self._questions = questions
        self._patience = patience
        self._beat_every = math.inf
        self._loop = asyncio.get_running_loop()
        self._nodes: dict[int, Node] = {}
        self._numbers = self.lost = 0
        self._flush_is_due = False
        self._unsent = 0  # how many jobs were put since the last flush
        self._beat = Alarm(self._loop, self._on_beat)
        self._turned = asyncio.Event()
        self._news = NodeNews(client, questions)
        self._loads = Loads(self._loaded)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

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
        """Return the agent that has *job*, if any has."""
        number = self._jobs.agent_of(job)
        return None if number is None else self._nodes.get(number)

    def has_begun(self, job: int) -> bool:
        """Tell whether an agent has given *job* to its pool."""
        node = self.of(job)
        return node is not None and (node.has_begun(job) or self._jobs.has_begun(job))

    async def next_turn(self) -> None:
        """Wait until an agent has taken jobs, or is lost.

        Cancellation:
            Safe.
        """
        self._turned.clear()
        await self._turned.wait()

    # Agents that come and go.

    def join(self, carrier: Carrier, about: dict[str, Any]) -> None:
        """Use the agent at the other end of *carrier*, which has told this *about* itself.

        Raises:
            ValueError: If the client's patience is shorter than the agent's.
        """
        lease = float(about["lease"])
        patience = node_timeout(lease) if self._patience is None else self._patience
        now = self._loop.time()
        signs = SignsOfLife(lease=lease, patience=patience, now=now)
        were_several = self._are_several
        self._numbers += 1
        number = self._numbers
        node = self._nodes[number] = Node(number, carrier, about, signs)
        carrier.allow(MAX_PIECE)
        carrier.on_bytes = partial(self._on_bytes, node)
        carrier.on_gone = partial(self.lose, node)
        self._beat_every = min(self._beat_every, beat_every(lease))
        self._beat.set_by(now + self._beat_every)
        is_ready = self._client.on_join(node)
        jobs = self._jobs.join(
            number,
            node.credits,
            node.window,
            is_limited=self._are_limited,
            is_ready=is_ready,
        )
        self.send(number, jobs)
        if self._are_several and not were_several:
            for each in [*self._nodes.values()]:
                self._refill(each, now)

    def ready(self, node: Node) -> None:
        """Hear that an agent may have jobs that was not ready when it joined."""
        if node.number in self._nodes:
            self.send(node.number, self._jobs.ready(node.number))

    @property
    def _are_several(self) -> bool:
        return self.expected or len(self._nodes) > 1

    @property
    def _are_limited(self) -> bool:
        """Whether agents get no more than their windows allow: others may take the jobs."""
        return self._are_several or self._is_limited

    def _refill(self, node: Node, now: float) -> None:
        node.window.look(now)
        self._jobs.limit(node.number, is_limited=self._are_limited)
        self.send(node.number, self._jobs.refill(node.number))

    def limit_ahead(self) -> None:
        """Let an agent have no more jobs than it can begin soon, also if it is alone."""
        self._is_limited, now = True, self._loop.time()
        for node in [*self._nodes.values()]:
            self._refill(node, now)

    def give_up(self, why: str) -> None:
        """Lose all agents, and expect no other one: what has not begun fails for that, too."""
        self.expected = False
        for node in [*self._nodes.values()]:
            self.lose(node, why)
        for job in [*self._registry.jobs.values()]:
            self._client.drop(job)
            self._registry.fail(job, PoolClosedError(why))
        self._client.draining.look()
        self._turned.set()

    def close(self) -> None:
        """Leave the agents."""
        self._beat.cancel()
        self._loads.close()
        for node in [*self._nodes.values()]:
            self._leave(node)
            self._questions.lost(node)
        self._turned.set()

    def _leave(self, node: Node) -> None:
        del self._nodes[node.number]
        node.carrier.on_gone = ignore
        node.carrier.abort()  # what is not sent by now is about jobs that are over

    def lose(self, node: Node, why: Exception | str | None = None) -> None:
        """Leave an agent that is gone, or of no use, and find what becomes of its jobs.

        Args:
            node: The agent.
            why: What is known of the reason, if it is not only silent, or its process gone.
        """
        if node.number not in self._nodes:
            return
        self._leave(node)
        now = self._loop.time()
        silence = node.signs.silence(now, now - self._beat.due)._replace(why=why)
        self._jobs.began(node.number, node.begun())
        losses, pairs = self._jobs.lose(node.number)
        self._client.sessions.lost(node)
        self._client.on_lost(node)
        names = Counter[str]()
        for loss in losses:
            job = self._registry.jobs.get(loss.job)
            if job is not None:
                names[job.title] += 1
                self._on_loss(job, node, silence, loss.delivery)
        for other, number in pairs:
            self.send(other, [number])
        if not self.any:
            for job in [*self._registry.jobs.values()]:
                self._client.drop(job)
                self._client.ends.fail_lost(job, node, silence, Delivery.NEVER_SENT)
        self._registry.leases.worker_gone(node.number)
        self._questions.lost(node)
        self._client.draining.look()
        self._turned.set()
        if losses or not self._client.agent_closes:
            self.lost += 1
            extra = {
                "node": node.name,
                "reason": str(silence),
                "jobs": len(losses),
                "functions": list_functions(names),
                "begun": [one.delivery for one in losses].count(Delivery.STARTED),
            }
            NamedLog(self._client.name, self._client.title).now(say.NODE_LOST, extra)

    def _on_loss(
        self, job: PoolJob[Any], node: Node, silence: Silence, delivery: Delivery
    ) -> None:
        self._client.waits.forget(job.id)
        ends, bound = self._client.ends, job.options.session is not None
        if delivery is Delivery.STARTED:
            if ends.lose_attempt(job, node, silence, others=self.any):
                self.send_again(job)
                return
        else:
            if not self._loads.give_up(job.id):
                self._registry.unassign(job)
            if self.any and not bound:
                return  # another agent gets it
            self._client.drop(job)
        ends.fail_lost(job, node, silence, delivery)

    def _on_beat(self, now: float) -> None:
        # What came while the loop did not run is not read yet: uvloop's timers come first.
        late = now - self._beat.due
        for node in [*self._nodes.values()]:
            node.signs.held_up(late)
            trust = node.signs.trust(now)
            if trust is Trust.LOST:
                self.lose(node)
                continue
            if trust is Trust.SUSPECTED:
                self._jobs.suspect(node.number)
            self._refill(node, now)
            node.beat()
        self._beat.set_in(self._beat_every)

    # What goes to agents.

    def send(self, number: int, jobs: list[int]) -> None:
        """Have an agent get *jobs*: at once if it has no others, else with the next batch."""
        if not jobs:
            return
        node, now = self._nodes[number], self._loop.time()
        for each in jobs:
            job = self._registry.jobs[each]
            payload = job.payload
            if type(payload) is bytes:
                self._put(node, job, PLAIN + payload, now)
                continue
            if type(payload) is StoredCall:
                cast("StoringCarrier", node.carrier).store(each, payload)
                self._put(node, job, STORED, now)
                continue
            lent = self._loads.begin(node, job)
            if lent is not None:
                self._put(node, job, lent, now)
        self._unsent += len(jobs)
        alone = self._jobs.is_alone(number) and not self._flush_is_due
        if alone or self._unsent >= _AT_ONCE:
            self._unsent = 0
            node.flush(now)
        else:
            self.flush_soon()

    def send_again(self, job: PoolJob[Any]) -> None:
        """Have a job that has left its agent go to one again, before those that wait."""
        traits, key = job.function.traits, job.options.key
        for other, number in self._jobs.again(job.id, traits, key=key):
            self.send(other, [number])

    def is_loading(self, job: int) -> bool:
        """Tell whether the large buffers of *job* are on their way, so that it comes later."""
        return job in self._loads

    def _put(self, node: Node, job: PoolJob[Any], payload: bytes, now: float) -> None:
        hub = self._client.hub
        followed = hub.ends_heard or job.id in hub.traced
        wait = self._client.waits.left(job)
        job.begin_attempt(node.number)  # it may begin from now on
        if hub.traced:
            self._registry.events.sending(job, node.first_slot)
        traced = bool(hub.tracers)
        node.put_job(job, payload, now, wait, followed=followed, traced=traced)
        leases = self._registry.leases
        if leases.holders:
            leases.before_sending(job, node.number)
        if type(job.payload) is not bytes:
            self._client.traffic.go_on()

    def _loaded(self, node: Node, job: PoolJob[Any], payload: bytes) -> None:
        """Send a job whose large buffers its agent can see by now."""
        self._put(node, job, payload, self._loop.time())
        self.flush_soon()
        self._client.sessions.sent(job)

    def cancel(self, number: int, job: int) -> None:
        """Tell an agent that nobody wants *job*."""
        if self._loads.give_up(job):  # the agent has not heard of it
            self._jobs.ended(number, job)
            self._client.sessions.ended(job)
            self._client.traffic.go_on()
            self.send(number, self._jobs.refill(number))
            return
        self._nodes[number].put(Message(Kind.CANCEL, job))
        self.flush_soon()

    def fence(self, job: PoolJob[Any], number: int, until: float) -> None:
        """Tell an agent until when it may run *job*, whose lease lapses then.

        The time is told from the agent's newest time on, which is older than this word, however
        long that is on its way.
        """
        node = self._nodes.get(number)
        if node is not None:
            left = until - node.signs.heard_at
            stamp = node.link.echo
            node.put(Message(Kind.FENCE, job.id, priority=stamp, deadline=left))
            self.flush_soon()

    def flush_soon(self) -> None:
        """Send what was put, at the end of this turn of the loop."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due, self._unsent = False, 0
        now = self._loop.time()
        for node in self._nodes.values():
            node.flush(now)

    # What agents say.

    def _on_bytes(self, node: Node, data: bytes) -> None:
        try:
            batch = Batch.unpack(data)
            if batch.session != node.link.session or node.number not in self._nodes:
                return
            now = self._loop.time()
            node.heard(batch, now)
            self.send(node.number, self._jobs.trust(node.number))
            for packed in node.link.receive(batch):
                self._news.on_message(node, Message.unpack(packed))
        except ProtocolError as error:
            self.lose(node, error)
            return
        if node.number in self._nodes:
            self._refill(node, now)
            node.flush(now)
        if not self._turned.is_set():
            self._turned.set()
        self._client.draining.look()
