"""What agents tell their client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncpool._core.remote.lent_parts import LENT
from asyncpool._core.remote.suspicion import Silence
from asyncpool._core.remote_wire.remote_messages import Kind, Message, unpack_numbers
from asyncpool._core.wire.heartbeat_records import Beat
from asyncpool._runtime.client.job_ends import frame_of
from asyncpool._runtime.job.chunk_job import ChunkJob
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.job.stream_job import StreamJob
from asyncpool._runtime.node.node import Node
from asyncpool._runtime.node.questions import Questions
from asyncpool._runtime.remote import found_items
from asyncpool._runtime.remote.own_objects import kind_of, load_own
from asyncpool.enums import Delivery
from asyncpool.errors import ProtocolError
from asyncpool.events import Broken, Crash, Crashed, Event

if TYPE_CHECKING:
    from asyncpool._runtime.client.client import Client

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
            if self._client.hub.watched:
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

    def _note_attempt(self, node: Node, job: Job[Any], message: Message) -> None:
        watch, now = self._registry.watch, self._loop.time()
        if message.place:
            watch.attempted(job, node.attempt_of(job, message, now))
        elif self._client.hub.listened and message.kind in _RAN:
            # It was on its way before anybody listened.
            watch.running([job], node.first_slot, now)

    def _on_began(self, node: Node, message: Message) -> None:
        now = self._loop.time()
        node.acknowledge_begins()
        for number in self._jobs.began(node.number, unpack_numbers(message.payload)):
            self._client.waits.forget(number)
            job = self._registry.jobs.get(number)
            if job is not None and self._client.hub.listened:
                # Its end tells which slot of the node it is in.
                self._registry.watch.running([job], node.first_slot, now)

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
            log, now = job._listen(), self._loop.time()
            beat = Beat(log.heard + 1, job.id, job.attempt, now, message.payload)
            log.add(beat, now)

    def _own(self, node: Node, message: Message) -> Job[Any] | None:
        """Return the job of a message, if it is open and that agent has it."""
        if self._jobs.agent_of(message.job) != node.number:
            return None
        return self._registry.jobs.get(message.job)

    def _on_free(self, node: Node, message: Message) -> None:
        del node
        self._registry.leases.give_back(message.job)

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
        found_items.find(job, message.payload)

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
