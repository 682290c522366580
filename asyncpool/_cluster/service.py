"""What the master of a cluster does for its workers, besides keeping them alive.

The supervisor, its slots and its worker handles are the same as those of a pool.  This module
has what stands in for jobs: sockets to listen on, connections, and messages.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
from collections.abc import Hashable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any, Literal, cast

from asyncpool._cluster import log_messages as say
from asyncpool._cluster.balancer import ConnectionBalancer
from asyncpool._cluster.balancing import Share
from asyncpool._cluster.link import (
    MAX_MESSAGE,
    MOST_MESSAGES,
    HandleTag,
    Link,
    Mail,
)
from asyncpool._cluster.listeners import Listeners
from asyncpool._cluster.rules import DrainLimit, drain_limit
from asyncpool._core.figures import MOST_NUMBERS, RequestFigures
from asyncpool._core.slots import UP
from asyncpool._engine.channel import Channel, DescriptorSocket
from asyncpool._engine.engine import Engine
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.worker import WorkerHandle
from asyncpool._wire.frames import Frame, FrameKind, header
from asyncpool._wire.messages import MAX_BROADCASTS, WorkerConfig, unpack_numbers
from asyncpool.errors import ProtocolError

# The main module of a worker that serves.
_MAIN = "asyncpool._cluster.worker"

Spread = Literal["handoff", "shared"]

_MOST_FIGURES = 8 * MOST_NUMBERS  # bytes

# A limit, since a worker can make the master queue answers to handles, and nothing else.
_MOST_UNSENT = 2 * MOST_MESSAGES * MAX_MESSAGE

# The most open requests of a list, and the number of the order that asks for them.
MOST_REQUESTS = 1000
_REQUESTS = 1

# The most sockets, and files, of workers that are kept until the user takes them.
_MOST_SOCKETS = 64


class WorkerLink(Link):
    """The master's end of the link to one worker.

    Args:
        slot: The worker's slot.
        generation: Which worker of that slot it is, counting from 1.
        sock: The socket at which descriptors arrive.
        channel: The channel that reads frames from *sock*.
        service: Has what the worker sends to go to.

    Attributes:
        open: Whether the worker is ready, and may be sent something.
        lost: How many of its connections no other worker got, since there were too few
            descriptors.
        figures: What it has counted of its requests, as far as it has told.
    """

    def __init__(
        self,
        slot: int,
        generation: int,
        sock: DescriptorSocket,
        channel: Channel,
        service: Service,
    ) -> None:
        super().__init__(sock, channel, service.queues, "it")
        self.slot = slot
        self.generation = generation
        self.open = False
        self.lost = self._lost_there = 0
        self.figures = RequestFigures()
        self._service = service

    def reads(self, *, early: bool) -> bool:
        return not self.is_shut and (self.open or early)

    def shut(self) -> None:
        if not self.is_shut:
            self.open = False
            if not self._service.stopped:
                self.put(FrameKind.RETURN)
            super().shut()
            self._service.begin_drain(self)

    def on_frames(self, frames: list[Frame]) -> None:
        super().on_frames(frames)
        if self.channel.unsent > _MOST_UNSENT:
            raise ProtocolError("it does not read the answers to its handles")

    def on_answer(self, number: int, *, taken: bool, users: bool) -> None:
        self._service.balancer.answered(self, number, taken=taken, users=users)

    def on_connection(self, number: int, fd: int | None) -> None:  # noqa: ARG002
        # Not answered: the worker cannot read answers any more.
        if fd is None:
            self._lose(1)
        else:
            self._service.balancer.returned(self, fd)

    def on_frame(self, frame: Frame) -> None:
        if frame.kind is FrameKind.LOAD:
            numbers = unpack_numbers(frame.payload)
            if len(numbers) != 3:  # noqa: PLR2004 - opened, closed, cut off
                raise ProtocolError(f"its load has {len(numbers)} numbers")
            more = frame.job - self._lost_there
            if more < 0:
                raise ProtocolError(
                    f"it lost {frame.job} connections, after {self._lost_there}"
                )
            self._service.count_load(self, *numbers)
            if more:
                self._lost_there = frame.job
                self._lose(more)
        elif frame.kind is FrameKind.FIGURES:
            if len(frame.payload) > _MOST_FIGURES:
                raise ProtocolError(f"its figures have {len(frame.payload)} bytes")
            numbers = unpack_numbers(frame.payload)
            self.figures = RequestFigures.unpack(numbers, self.figures)
            self._service.note_requests(self)
        else:
            raise ProtocolError(f"it sent {frame.kind.name} on its link")

    def _lose(self, more: int) -> None:
        self.lost += more
        self._service.balancer.lost += more


class WorkerMail(Mail):
    """What the workers of one cluster have sent, until its user takes it.

    Args:
        log: The cluster's log.
    """

    def __init__(self, log: NamedLog) -> None:
        super().__init__(_MOST_SOCKETS)
        self._log = log
        self._dropping = self._told = False

    def take_message(self, link: Any, payload: bytes) -> None:
        if self._dropping:
            self._drop(link)
        else:
            super().take_message(link, payload)

    def drop_messages(self) -> None:
        """Drop all messages from now on, since no code can read them."""
        self._dropping = True
        for link, _ in self.messages.clear():
            self._drop(link)

    def _drop(self, link: WorkerLink) -> None:
        link.consumed()
        if not self._told:
            self._told = True
            self._log.now(say.MESSAGES_UNREAD, {"slot": link.slot})

    def drop_worker(self, slot: int) -> None:
        """Keep no more messages of a slot's dead workers than one living worker may have here.

        The oldest messages go.
        """
        items = self.messages.clear()
        surplus = sum(link.slot == slot for link, _ in items) - MOST_MESSAGES
        left = surplus
        for link, payload in items:
            if link.slot == slot and left > 0:
                left -= 1
            else:
                self.messages.put((link, payload))
        if surplus > 0:
            extra = {"slot": slot, "messages": surplus}
            self._log.now(say.MESSAGES_DROPPED, extra)


def _read_requests(slot: int, text: str) -> Iterator[dict[str, Any]]:
    """Yield what a worker has told of its open requests; nothing if it has not told, or nonsense."""
    wrong = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
    with suppress(*wrong):
        for told in json.loads(text):
            row = {name: str(told[name]) for name in ("method", "path", "client")}
            where = None if told["stack"] is None else str(told["stack"])
            age = max(0.0, min(float(told["age"]), 1e9))  # JSON has no infinity
            yield {"worker": slot, **row, "age": age, "stack": where}


class Service:
    """What the workers of one cluster need from its master.

    Args:
        engine: The engine of their pool, whose configuration is the cluster's options.
        worker: Their configuration.
        target: The name of the function that serves, or the pickled function.
        listeners: The listening sockets, if there are any.
        worker_log: Where workers write their logs by themselves, and an object that does so, pickled.

    Attributes:
        balancer: Hands connections to them.
        queues: What they have sent.
        links: The links to the workers that have a process, by slot.
        stopped: Whether the end has begun.
        cut: Connections that the ends of their workers have cut off.
    """

    def __init__(
        self,
        engine: Engine,
        worker: WorkerConfig,
        target: str | bytes,
        listeners: Listeners | None,
        worker_log: tuple[int, bytes] | None,
    ) -> None:
        self._engine = engine
        self._worker_log = worker_log
        self._options = cast("Any", engine.config)
        self._worker, self._target, self._listeners = worker, target, listeners
        self.links: dict[int, WorkerLink] = {}
        name = engine.config.name
        log = NamedLog(name, f"cluster {name}")
        self.queues = WorkerMail(log)
        # The sockets that the master accepts on, and those that workers do.
        own, self._shared = [] if listeners is None else listeners.sockets(), []
        if self._options.spread == "shared":
            own, self._shared = [], own
        self.balancer = ConnectionBalancer(log, own, self.links)
        # Broadcasts, which each new worker gets in their order.
        self._remembered: dict[Hashable, bytes] = {}
        self.stopped = self._served = False
        self._stopped_at: float | None = None
        # When the worker of each slot began to drain, and whether others went on serving then.
        self._drains: dict[int, tuple[float, bool]] = {}
        self._at_end = self._cut = 0
        self.cut = 0
        self._past = RequestFigures()  # of workers that are gone
        engine.measure_lag()

    # The life of a worker.

    def config(self, handle: WorkerHandle) -> bytes:
        """Return the configuration of a worker that is being started, packed."""
        options = self._options
        serving = (
            self._target,
            options.spread,
            (options.drain_timeout, options.reload_drain_timeout),
            handle.slot,
            handle.generation,
            tuple(self._remembered.values()),
            self._worker_log and (self._worker_log[1], self._engine.config.name),
        )
        main = _MAIN, pickle.dumps(serving)
        return pickle.dumps(self._worker._replace(main=main))

    def open_link(
        self, handle: WorkerHandle, arriving: DescriptorSocket, channel: Channel
    ) -> WorkerLink:
        """Return the link to a worker that is being started, with its sockets to listen on.

        Raises:
            OSError: If this process lacks the means.
        """
        link = WorkerLink(handle.slot, handle.generation, arriving, channel, self)
        if self._worker_log is not None:
            link.hand(os.dup(self._worker_log[0]), HandleTag.LOG)
        for sock in [] if self.stopped else self._shared:
            head = header(FrameKind.LISTEN, 0, number=len(self._shared))
            channel.put_descriptor(head, os.dup(sock.fileno()))
        channel.flush()
        # Last: if something above fails, nothing would remove the link again.
        self.links[handle.slot] = link
        self.balancer.core.shares[handle.slot] = Share()
        return link

    def ready(self, handle: WorkerHandle) -> None:
        """Note that a worker is ready."""
        self._served = True
        if self._engine.core.slots[handle.slot].state in UP:
            link = self.links[handle.slot]
            link.open = True
            self.balancer.open(link, is_open=True)

    def begin_drain(self, link: WorkerLink) -> None:
        """Note that a worker gets nothing more."""
        self._drains[link.slot] = self._engine.loop.time(), not self.stopped
        self._engine.handles[link.slot].since = monotonic()
        self.balancer.open(link, is_open=False)

    def had_served(self, handle: WorkerHandle) -> bool:
        """Note that a worker is dead; return whether it has served anybody."""
        slot, link = self._engine.core.slots[handle.slot], self.links.get(handle.slot)
        if handle.status == 0 and not slot.exit_planned and slot.ready_at is not None:
            handle.detail = handle.detail or "serve() returned"
        if link is None:
            return False  # there were too few descriptors to open its link
        share = self.balancer.core.shares[link.slot]
        # At the end nobody else gets what it has not taken.
        served = share.total if self.stopped else share.taken
        # The worker has logged the others.
        unsaid = max(served - share.closed, 0) - share.still_open
        del self.links[link.slot]
        link.shut()
        link.end()
        self.balancer.gone(link)
        self.queues.drop_worker(link.slot)
        self.cut += unsaid
        if self.stopped:
            self._cut += unsaid
        link.figures.end()
        self._past.add(link.figures)
        limit = self._overrun(handle)
        if limit is not None and slot.exit_planned and not handle.failed:
            self._tell_of_overrun(handle, limit, unsaid, served)
        return served > 0 and not slot.faulty

    def _overrun(self, handle: WorkerHandle) -> DrainLimit | None:
        """Return the limit that a dead worker had exceeded, if that was why it was ended.

        If it was ended before its limit, somebody wanted the end at once.
        """
        began, others_serve = self._drains.pop(handle.slot)
        if handle.first_signal_at is None:
            return None
        limit = drain_limit(
            began,
            self._stopped_at,
            others_serve=others_serve,
            at_end=self._options.drain_timeout,
            replaced=self._options.reload_drain_timeout,
        )
        return limit if handle.first_signal_at >= limit.over_at else None

    def _tell_of_overrun(
        self, handle: WorkerHandle, limit: DrainLimit, cut: int, served: int
    ) -> None:
        """Log that a worker was late, and what that cost, since the worker hung and could not."""
        why = f"it had not ended within the {limit.name} of {limit.seconds:g} s"
        if handle.status is None or handle.status < 0:
            # For SIGKILL the crash report says already that the worker was killed.
            by = "" if handle.killed else "killed by SIGTERM since "
            handle.detail = handle.detail or by + why
        if cut or handle.late_stacks:
            cost = f": {cut} of {served} connections are cut off" if cut else ""
            extra = {
                "slot": handle.slot,
                "generation": handle.generation,
                "pid": handle.pid,
                "limit": limit.name,
                "cut_off": cut,
            }
            words = {"why": why, "cost": cost, "stack": handle.late_stacks}
            self._engine.log.now(say.WORKER_OVERRAN, extra, **words)

    async def broadcast(self, key: Hashable, payload: bytes) -> None:
        """Send a message to all workers, present and later ones.

        Raises:
            ValueError: If that is too much to remember.

        Cancellation:
            Some workers may get it; later workers do.
        """
        others = sum(len(self._remembered[it]) for it in self._remembered if it != key)
        if others + len(payload) > MAX_BROADCASTS:
            raise ValueError(
                f"a message of {len(payload)} bytes, and {others} of those that are "
                f"remembered, are more than the {MAX_BROADCASTS} which new workers may be "
                "told: use fewer keys"
            )
        self._remembered.pop(key, None)
        self._remembered[key] = payload
        # From here on, the configuration of each worker that has no link yet contains it.
        async with asyncio.TaskGroup() as sending:
            for link in self.links.values():
                sending.create_task(
                    link.send(payload, early=True), name="asyncpool broadcast"
                )

    def count_load(self, link: WorkerLink, opened: int, closed: int, cut: int) -> None:
        """Note how many connections a worker has had.

        Raises:
            ProtocolError: If the numbers cannot be right.
        """
        share = self.balancer.core.shares[link.slot]
        had, cut_before = share.total, share.cut
        share.load(opened, closed, cut)
        self.cut += cut - cut_before
        if self.stopped:
            # Perhaps it has accepted what was waiting.
            self._at_end += share.total - had
            self._cut += cut - cut_before
        with self._engine.turn as now:
            self._engine.core.served(link.slot, closed, now)

    def note_requests(self, link: WorkerLink) -> None:
        """Give connections to others while a worker has more requests, or can take none."""
        figures, share = link.figures, self.balancer.core.shares[link.slot]
        share.busy = bool(figures.busy)
        share.idle = max(0, share.connections - figures.open - figures.open_websockets)
        self.balancer.dispatch()

    async def open_requests(self) -> list[dict[str, Any]]:
        """Return the requests that workers are in, the oldest first, no more than :data:`MOST_REQUESTS`.

        Cancellation:
            Safe.
        """
        handles, ask = self._engine.handles, self._engine.stacks.ask
        slots = [*self.links]
        texts = await asyncio.gather(*(ask(handles[it], _REQUESTS) for it in slots))
        told = map(_read_requests, slots, texts)
        found = [row for rows in told for row in rows]
        return sorted(found, key=lambda row: -row["age"])[:MOST_REQUESTS]

    def is_busy(self, link: WorkerLink) -> bool:
        """Tell whether a worker that may be sent something can take no request."""
        return bool(link.figures.busy) or self.balancer.is_late(link.slot)

    def requests(self) -> RequestFigures:
        """Return what all workers have counted of their requests, as far as they have told."""
        figures = RequestFigures()
        for it in [self._past, *(link.figures for link in self.links.values())]:
            figures.add(it)
        return figures

    @property
    def close_counts(self) -> tuple[int, int]:
        """How many connections were finished since the end began, and cut off."""
        return self._at_end - self._cut, self._cut

    # The end.

    def stop(self) -> None:
        """Accept no more connections."""
        if self.stopped:
            return
        self.balancer.stop()
        self.stopped = True
        self._stopped_at = self._engine.loop.time()
        if self._listeners is not None:
            self._listeners.close()
        shares = [self.balancer.core.shares[slot] for slot in self.links]
        self._at_end = sum(share.connections for share in shares)
        self._cut = sum(share.still_open for share in shares)
        for slot, link in self.links.items():
            if link.is_shut:  # the others hear soon that nobody goes on serving
                self._engine.handles[slot].send_control(FrameKind.CLOSING)

    def close(self) -> None:
        """Close everything, and log what the end has cost; there are no workers any more."""
        self.stop()
        if self._served:
            finished, cut = self.close_counts
            engine = self._engine
            killed = engine.registry.summary(engine.core.lifecycle.kills).killed
            extra = {"finished": finished, "failed": cut, "killed": killed}
            engine.log.now(say.SERVER_ENDED, extra)
        self.balancer.close()
        self.queues.close()
