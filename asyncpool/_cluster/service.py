"""What the master of a cluster does for its workers, besides keeping them alive.

The supervisor, its slots and its worker handles are the same as those of a pool.  This module
has what stands in for jobs: sockets to listen on, connections, and messages.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from asyncpool._cluster import log_messages as say
from asyncpool._cluster.balancer import ConnectionBalancer
from asyncpool._cluster.link import WorkerLink
from asyncpool._cluster.listeners import Listeners
from asyncpool._cluster.queues import MessageQueues
from asyncpool._cluster.rules import DrainLimit, drain_limit
from asyncpool._core.figures import RequestFigures
from asyncpool._core.slots import UP
from asyncpool._engine.channel import Channel, DescriptorSocket
from asyncpool._engine.engine import Engine
from asyncpool._engine.worker import WorkerHandle
from asyncpool._wire.frames import FrameKind
from asyncpool._wire.messages import MAX_BROADCASTS, WorkerConfig

# The main module of a worker that serves.
_MAIN = "asyncpool._cluster.serve"

Spread = Literal["handoff", "shared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """What the workers of a cluster do instead of jobs; see :class:`asyncpool.Cluster`.

    Attributes:
        target: The name of the function that serves, or the pickled function.
        spread: How connections get to the workers.
        drain_timeout: Seconds for a worker to finish its connections if the cluster ends.
        reload_drain_timeout: Seconds for that if other workers go on serving.
        listeners: The listening sockets, if there are any.
    """

    target: str | bytes
    spread: Spread
    drain_timeout: float
    reload_drain_timeout: float
    listeners: Listeners | None


class Service:
    """What the workers of one cluster need from its master.

    Args:
        config: What the workers do.
        engine: The engine of their pool.
        worker: Their configuration.

    Attributes:
        balancer: Hands connections to them.
        queues: What they have sent.
        links: The links to the workers that have a process, by slot.
        stopped: Whether the end has begun.
        cut: Connections that the ends of their workers have cut off.
    """

    def __init__(
        self,
        config: ServingConfig,
        engine: Engine,
        worker: WorkerConfig,
    ) -> None:
        self._engine = engine
        self._config = config
        self._worker = worker
        self.links: dict[int, WorkerLink] = {}
        self.queues = MessageQueues(engine.config.name)
        listeners, own = config.listeners, list[socket.socket]()
        if listeners is not None and config.spread == "handoff":
            own = listeners.sockets()
        self.balancer = ConnectionBalancer(
            engine.loop, engine.config.name, own, self.links
        )
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
        config = self._config
        serving = (
            config.target,
            config.spread,
            (config.drain_timeout, config.reload_drain_timeout),
            handle.slot,
            handle.generation,
            tuple(self._remembered.values()),
        )
        main = _MAIN, pickle.dumps(serving)
        return pickle.dumps(self._worker._replace(main=main))

    def open_link(
        self, handle: WorkerHandle, sock: DescriptorSocket, channel: Channel
    ) -> WorkerLink:
        """Return the link to a worker that is being started, with its sockets to listen on.

        Raises:
            OSError: If this process lacks the means.
        """
        link = WorkerLink(handle.slot, handle.generation, sock, channel, self)
        listeners = self._config.listeners
        if listeners and self._config.spread == "shared" and not self.stopped:
            link.listen(listeners.sockets())
        # Last: if something above fails, nothing would remove the link again.
        self.links[handle.slot] = link
        self.balancer.core.add(handle.slot)
        return link

    def ready(self, handle: WorkerHandle) -> None:
        """Note that a worker is ready."""
        self._served = True
        if self._engine.core.slots[handle.slot].state in UP:
            link = self.links[handle.slot]
            link.open = True
            self.balancer.joined(link)

    def had_served(self, handle: WorkerHandle) -> bool:
        """Note that a worker is dead; return whether it has served anybody."""
        slot, link = self._engine.core.slots[handle.slot], self.links.get(handle.slot)
        if handle.status == 0 and not slot.exit_planned and slot.ready_at is not None:
            handle.detail = handle.detail or "serve() returned"
        if link is None:
            return False  # there were too few descriptors to open its link
        spread = self.balancer.core
        served, open_now = spread.taken_by(link.slot)
        if self.stopped:  # nobody else gets what it has not taken
            served, open_now = spread.totals(link.slot), spread.connections(link.slot)
        unsaid = open_now - spread.still_open(
            link.slot
        )  # the worker has logged the others
        del self.links[link.slot]
        link.shut()
        self.balancer.gone(link)
        self.queues.drop_worker(link)
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
            at_end=self._config.drain_timeout,
            replaced=self._config.reload_drain_timeout,
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

    def begin_drain(self, link: WorkerLink) -> None:
        """Note that a worker gets nothing more."""
        self._drains[link.slot] = self._engine.loop.time(), not self.stopped
        self._engine.handles[link.slot].since = monotonic()
        self.balancer.left(link)

    def count_load(self, link: WorkerLink, opened: int, closed: int, cut: int) -> None:
        """Note how many connections a worker has had.

        Raises:
            ProtocolError: If the numbers cannot be right.
        """
        spread = self.balancer.core
        had, cut_before = spread.totals(link.slot), spread.count_cut_off(link.slot)
        spread.load(link.slot, opened, closed, cut)
        self.cut += cut - cut_before
        if self.stopped:
            # Perhaps it has accepted what was waiting.
            self._at_end += spread.totals(link.slot) - had
            self._cut += cut - cut_before
        with self._engine.turn as now:
            self._engine.core.served(link.slot, closed, now)

    def note_requests(self, link: WorkerLink) -> None:
        """Give connections to others while a worker has more requests, or can take none."""
        figures, core = link.figures, self.balancer.core
        requests = figures.open + figures.open_websockets
        core.set_requests(link.slot, requests, busy=bool(figures.busy))
        self.balancer.dispatch()

    def is_busy(self, link: WorkerLink) -> bool:
        """Tell whether a worker that may be sent something can take no request."""
        return bool(link.figures.busy) or self.balancer.is_late(link.slot)

    def requests(self) -> RequestFigures:
        """Return what all workers have counted of their requests, as far as they have told."""
        figures = RequestFigures()
        figures.add(self._past)
        for link in self.links.values():
            figures.add(link.figures)
        return figures

    @property
    def close_counts(self) -> tuple[int, int]:
        """How many connections were finished since the end began, and cut off."""
        return self._at_end - self._cut, self._cut

    # The end.

    def stop(self) -> None:
        """Accept no more connections."""
        if not self.stopped:
            self.balancer.stop()
            self.stopped = True
            self._stopped_at = self._engine.loop.time()
            if self._config.listeners is not None:
                self._config.listeners.close()
            spread = self.balancer.core
            self._at_end = sum(spread.connections(slot) for slot in self.links)
            self._cut = sum(map(spread.still_open, self.links))
            for slot, link in self.links.items():
                if link.is_shut:  # the others hear soon that nobody goes on serving
                    self._engine.handles[slot].ask(FrameKind.CLOSING)

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
