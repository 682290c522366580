"""What the master of a cluster does for its workers, besides keeping them alive.

The supervisor, its slots and its worker handles are the same as those of a pool.  This module
has what stands in for jobs: sockets to listen on, connections, and messages.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Literal

from asyncpool._cluster import log_messages as say
from asyncpool._cluster.acceptor import Acceptor
from asyncpool._cluster.balancing import ConnectionBalancing, Share
from asyncpool._cluster.link import MAX_MESSAGE, MOST_MESSAGES, Link, Mail
from asyncpool._cluster.listeners import Listeners
from asyncpool._cluster.rules import DrainLimit, DrainTimes
from asyncpool._core.figures import NUMBERS, RequestFigures
from asyncpool._core.slots import UP
from asyncpool._engine.channel import Channel, DescriptorSocket
from asyncpool._engine.engine import Engine
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.loop import Alarm
from asyncpool._engine.machine import is_scarce
from asyncpool._engine.worker import WorkerHandle
from asyncpool._wire.frames import Frame, FrameKind, header
from asyncpool._wire.messages import MAX_BROADCASTS, WorkerConfig, unpack_numbers
from asyncpool.errors import NoWorkerError, ProtocolError

# The main module of a worker that serves.
_MAIN = "asyncpool._cluster.worker"

Spread = Literal["handoff", "shared"]

_MOST_FIGURES = 8 * NUMBERS  # bytes

# A limit, since a worker can make the master queue answers to handles, and nothing else.
_MOST_UNSENT = 2 * MOST_MESSAGES * MAX_MESSAGE

# The most open requests of a list, and the number of the order that asks for them.
MOST_REQUESTS = 1000
_REQUESTS = 1

# How many connections are accepted before the rest of the loop has its turn.
_ACCEPTS_A_TURN = 64

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
        share: Its connections; it is open if the worker is ready, and may be sent something.
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
        self.slot, self.generation, self._service = slot, generation, service
        self.share: Share[int] = Share()
        self.lost = self._lost_there = 0
        self.figures = RequestFigures()

    def shut(self) -> None:
        if not self.is_shut:
            self.share.open = False
            if not self._service.stopped:
                self.put(FrameKind.RETURN)
            super().shut()
            self._service.begin_drain(self)

    def on_frames(self, frames: list[Frame]) -> None:
        super().on_frames(frames)
        if self.channel.unsent > _MOST_UNSENT:
            raise ProtocolError("it does not read the answers to its handles")

    def on_answer(self, number: int, *, taken: bool, users: bool) -> None:
        balancer = self._service.balancer
        if not taken:
            balancer.core.pass_over(self.slot, self._loop.time())
        # What is a user's is with the balancer's send().
        if not users:
            fd = balancer.core.settle(self.slot, number, taken=taken)
            if taken:
                os.close(fd)
        balancer.dispatch()

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
            figures = self.figures = RequestFigures.unpack(numbers, self.figures)
            # Others get connections while it has more requests, or can take none.
            share, open_now = self.share, figures.open + figures.open_websockets
            share.busy = bool(figures.busy)
            share.idle = max(0, share.connections - open_now)
            self._service.balancer.dispatch()
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


class ConnectionBalancer:
    """The connections of one cluster.

    Args:
        log: The cluster's log.
        listeners: The listening sockets, if the master accepts connections.
        links: The links to the workers, by slot.

    Attributes:
        core: Decides which worker gets what.
        lost: How many connections of leaving workers were closed, since there were too few
            descriptors to hand them on.
    """

    def __init__(
        self,
        log: NamedLog,
        listeners: list[socket.socket],
        links: Mapping[int, WorkerLink],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log, self._links = log, links
        self._acceptor = Acceptor(
            listeners,
            self.dispatch,
            lambda why: log.now(say.TOO_FEW_DESCRIPTORS, why=why),
        )
        self._look = Alarm(self._loop, lambda _: self.dispatch())
        self._stopped = False
        self._paused: set[WorkerLink] = set()
        self._late: set[int] = set()
        self.lost = 0
        self.core: ConnectionBalancing[int] = ConnectionBalancing()

    # Events of workers.

    def gone(self, link: WorkerLink) -> None:
        """Give others what a dead worker has not taken."""
        self._paused.discard(link)
        if link.lost:
            extra = {"slot": link.slot, "lost": link.lost}
            self._log.now(say.CONNECTIONS_LOST, extra)
        self.core.gone(link.slot)
        self.dispatch()

    def returned(self, link: WorkerLink, fd: int) -> None:
        """Give another worker a connection that a leaving worker has given back.

        While descriptors are scarce, the leaving worker gives back the next connection only
        when another worker has taken this one.

        Raises:
            ProtocolError: If the worker cannot have had that connection.
        """
        try:
            self.core.returned(link.slot, fd)
        except ProtocolError:
            os.close(fd)
            raise
        self.dispatch()
        if link.is_shut and is_scarce(fd) and not self._stopped:
            self._paused.add(link)
            link.channel.pause()

    async def send(self, worker: int, fd: int, payload: bytes) -> None:
        """Send a user's copy to a worker; or to another one, if the first cannot receive it.

        Raises:
            NoWorkerError: If there is no such worker, or no other one.
        """
        slot: int | None = worker
        if worker not in self._links or not self._links[worker].share.open:
            raise NoWorkerError(worker)
        kept, tried = os.dup(fd), set[int]()
        try:
            while slot is not None:
                tried.add(slot)
                if await self._links[slot].ship(os.dup(kept), payload):
                    return
                slot = self.core.choose(self._loop.time(), besides=tried)
        finally:
            os.close(kept)
        raise NoWorkerError(None)

    # Connections.

    def is_late(self, slot: int) -> bool:
        """Tell whether a worker leaves lying what it got, and log that once."""
        self._note_late(self._loop.time())
        return slot in self._late

    def _note_late(self, now: float) -> None:
        late = {slot for slot, it in self.core.shares.items() if it.is_late(now)}
        for slot in late - self._late:
            self._log.now(say.WORKER_LATE, {"slot": slot})
        self._late = late

    def dispatch(self) -> None:
        """Hand on what can go to a worker now, and decide whether to accept more."""
        while self._paused:
            self._paused.pop().channel.resume()
        waiting = self.core.waiting
        if self._stopped:
            while waiting:
                os.close(waiting.popleft())
            return
        now, left = self._loop.time(), _ACCEPTS_A_TURN
        self._note_late(now)
        worker = self.core.choose(now)
        while worker is not None and (left or waiting):
            left -= not waiting
            fd = waiting.popleft() if waiting else self._acceptor.accept()
            if fd is None:
                break
            self._hand(worker, fd, now)
            worker = self.core.choose(now)
        self._acceptor.listen(wanted=worker is not None)
        if worker is None:
            self._look.set_at(self.core.next_check(now))

    def _hand(self, worker: int, fd: int, now: float) -> None:
        number = self._links[worker].hand(fd, keep=True)
        self.core.hand(worker, number, fd, now)

    def stop(self) -> None:
        """Accept no more; hand on what has come by now, to any worker that there is.

        A connection that a worker gives back later is closed.
        """
        if self._stopped:
            return
        for fd in self._rest():
            worker = self.core.least_busy()
            if worker is None:
                os.close(fd)
                break
            self._hand(worker, fd, self._loop.time())
        self._acceptor.close()
        self._stopped = True
        self.dispatch()

    def _rest(self) -> Iterator[int]:
        while self.core.waiting:
            yield self.core.waiting.popleft()
        yield from self._acceptor.rest()

    def close(self) -> None:
        """Close everything; there are no workers any more."""
        self.stop()
        self._look.cancel()


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
        self._engine, self._worker_log = engine, worker_log
        options: Any = engine.config
        self._spread = options.spread
        self._times = DrainTimes(options.drain_timeout, options.reload_drain_timeout)
        self._worker, self._target, self._listeners = worker, target, listeners
        self.links: dict[int, WorkerLink] = {}
        self.queues = WorkerMail(engine.log)
        # The sockets that the master accepts on, and those that workers do.
        own, self._shared = [] if listeners is None else listeners.sockets, []
        if self._spread == "shared":
            own, self._shared = [], own
        self.balancer = ConnectionBalancer(engine.log, own, self.links)
        # Broadcasts, which each new worker gets in their order.
        self._remembered: dict[Hashable, bytes] = {}
        self.stopped = self._served = False
        self._stopped_at: float | None = None
        # When the worker of each slot began to drain, and whether others went on serving then.
        self._drains: dict[int, tuple[float, bool]] = {}
        # How many connections there were since the end began, and were cut off before it.
        self._at_end = self._cut_before = self.cut = 0
        self._past = RequestFigures()  # of workers that are gone
        engine.measure_lag()

    # The life of a worker.

    def config(self, handle: WorkerHandle) -> bytes:
        """Return the configuration of a worker that is being started, packed.

        The descriptors of its log and its sockets to listen on go ahead of it.

        Raises:
            OSError: If this process lacks the means.
        """
        log = self._worker_log
        handed = [] if log is None else [log[0]]
        if not self.stopped:
            handed += [sock.fileno() for sock in self._shared]
        for fd in handed:
            head = header(FrameKind.HANDED, 0)
            handle.control_channel.put_descriptor(head, os.dup(fd))
        serving = (
            self._target,
            self._spread,
            self._times,
            handle.slot,
            handle.generation,
            tuple(self._remembered.values()),
            log and (log[1], self._engine.config.name),
        )
        main = _MAIN, pickle.dumps(serving)
        return pickle.dumps(self._worker._replace(main=main))

    def open_link(
        self, handle: WorkerHandle, arriving: DescriptorSocket, channel: Channel
    ) -> WorkerLink:
        """Return the link to a worker that is being started."""
        link = WorkerLink(handle.slot, handle.generation, arriving, channel, self)
        self.links[handle.slot] = link
        self.balancer.core.shares[handle.slot] = link.share
        return link

    def ready(self, handle: WorkerHandle) -> None:
        """Note that a worker is ready."""
        self._served = True
        if self._engine.core.slots[handle.slot].state in UP:
            self.links[handle.slot].share.open = True
            self.balancer.dispatch()

    def begin_drain(self, link: WorkerLink) -> None:
        """Note that a worker gets nothing more."""
        self._drains[link.slot] = self._engine.loop.time(), not self.stopped
        self._engine.handles[link.slot].since = monotonic()
        self.balancer.dispatch()

    def had_served(self, handle: WorkerHandle) -> bool:
        """Note that a worker is dead; return whether it has served anybody."""
        slot, link = self._engine.core.slots[handle.slot], self.links.get(handle.slot)
        if handle.status == 0 and not slot.exit_planned and slot.ready_at is not None:
            handle.detail = handle.detail or "serve() returned"
        if link is None:
            return False  # there were too few descriptors to open its link
        share = link.share
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
        link.figures.end()
        self._past.add(link.figures)
        began, others_serve = self._drains.pop(handle.slot)
        if slot.exit_planned and not handle.failed:
            limit = self._times.limit(
                began, self._stopped_at, others_serve=others_serve
            )
            self._tell_of_overrun(handle, limit, unsaid, served)
        return served > 0 and not slot.faulty

    def _tell_of_overrun(
        self, handle: WorkerHandle, limit: DrainLimit, cut: int, served: int
    ) -> None:
        """Log that a worker was ended since it was late, and what that cost: it hung and could not."""
        if handle.first_signal_at is None or handle.first_signal_at < limit.over_at:
            return  # who ended it before its limit wanted the end at once
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
                sending.create_task(link.send(payload), name="asyncpool broadcast")

    def count_load(self, link: WorkerLink, opened: int, closed: int, cut: int) -> None:
        """Note how many connections a worker has had.

        Raises:
            ProtocolError: If the numbers cannot be right.
        """
        share = link.share
        had, cut_before = share.total, share.cut
        share.load(opened, closed, cut)
        self.cut += cut - cut_before
        self._at_end += share.total - had  # perhaps it has accepted what was waiting
        with self._engine.turn as now:
            self._engine.core.served(link.slot, closed, now)

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
        cut = self.cut - self._cut_before
        return self._at_end - cut, cut

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
        shares = [link.share for link in self.links.values()]
        self._at_end = sum(share.connections for share in shares)
        self._cut_before = self.cut - sum(share.still_open for share in shares)
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
