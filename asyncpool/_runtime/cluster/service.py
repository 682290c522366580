"""What the master of a cluster does for its workers, besides keeping them alive.

The supervisor, its slots and its handles are those of a pool; here is what takes the place
of jobs: sockets to listen on, connections, messages.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

from asyncpool._core.cluster.drain_limits import DrainLimit, drain_limit
from asyncpool._core.slots.slots import UP
from asyncpool._core.wire.messages import MAX_BROADCASTS, WorkerConfig
from asyncpool._runtime.base.callbacks import warn
from asyncpool._runtime.channel.channel import Channel
from asyncpool._runtime.channel.descriptor_socket import DescriptorSocket
from asyncpool._runtime.cluster.balancer import ConnectionBalancer
from asyncpool._runtime.cluster.link import WorkerLink
from asyncpool._runtime.cluster.listeners import Listeners
from asyncpool._runtime.cluster.listening_groups import ListeningGroups
from asyncpool._runtime.cluster.message_queues import MessageQueues
from asyncpool._runtime.cluster.service_link_events import ServiceLinkEvents
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool._runtime.worker.handle import WorkerHandle

_LOGGER = logging.getLogger("asyncpool")

# The module of a worker that serves.
_MAIN = "asyncpool._worker.cluster.serve"

Spread = Literal["handoff", "shared", "reuseport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """What the workers of a cluster do instead of jobs; see :class:`asyncpool.Cluster`.

    Attributes:
        target: The name of the function that serves, or the pickled function.
        spread: How connections get to the workers.
        drain_timeout: Seconds that a worker has to finish them, if the cluster ends.
        reload_drain_timeout: Seconds that it has if others serve on.
        listeners: What is listened on, if anything is.
    """

    target: str | bytes
    spread: Spread
    drain_timeout: float
    reload_drain_timeout: float
    listeners: Listeners | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One worker in figures."""

    ready: bool
    connections: int
    had: int
    uptime: float


class Service:
    """The workers of one cluster, as those who serve.

    Args:
        config: What they do.
        state: The pool of them.
        worker: How they begin.

    Attributes:
        balancer: The way of connections to them.
        groups: What they listen on.
        queues: What they have sent.
        links: The ways to those that have a process, by slot.
        stopped: Whether the end has begun.
    """

    def __init__(
        self,
        config: ServingConfig,
        state: PoolState,
        worker: WorkerConfig,
    ) -> None:
        self._state = state
        self._config = config
        self._worker = worker
        self.links: dict[int, WorkerLink] = {}
        self.queues = MessageQueues(state.config.name)
        listeners, own = config.listeners, list[socket.socket]()
        if listeners is not None and config.spread == "handoff":
            own = listeners.sockets()
        self.balancer = ConnectionBalancer(
            state.loop, state.config.name, own, self.links
        )
        # What is told to each new worker, in the order of the broadcasts.
        self._remembered: dict[Hashable, bytes] = {}
        self.groups = ListeningGroups(config, state, self.balancer, self.links)
        self.stopped = False
        self._stopped_at: float | None = None
        # Since when each drains, and whether others served on then.
        self._drains: dict[int, tuple[float, bool]] = {}
        self._at_end = self._cut = 0
        self._link_events = ServiceLinkEvents(self)

    # The life of a worker.

    def config(self, handle: WorkerHandle) -> bytes:
        """Return what a worker is told when it is started, packed."""
        config = self._config
        serving = (
            config.target,
            config.spread,
            (config.drain_timeout, config.reload_drain_timeout),
            handle.slot,
            handle.generation,
            tuple(self._remembered.values()),
        )
        return self._worker._replace(main=(_MAIN, pickle.dumps(serving))).pack()

    def open_link(
        self,
        handle: WorkerHandle,
        sock: socket.socket,
        make_channel: Callable[[socket.socket], Channel],
    ) -> WorkerLink:
        """Return the line to a worker that is being started; it knows what to listen on.

        Raises:
            OSError: If this process lacks the means.
        """
        keeping = DescriptorSocket(sock)
        channel = make_channel(keeping)
        link = WorkerLink(
            handle.slot, handle.generation, keeping, channel, self._link_events
        )
        link.listen(self.groups.sockets_for(handle.slot))
        # Nobody knows of a line that has failed, so nobody would forget it.
        self.links[handle.slot] = link
        self.balancer.core.add(handle.slot)
        self.groups.fill_in()
        return link

    def ready(self, handle: WorkerHandle) -> None:
        """Take note that a worker is ready."""
        if self._state.core.slots[handle.slot].state in UP:
            link = self.links[handle.slot]
            link.open = True
            self.groups.fill_in()  # or it would be handed what it will accept
            self.balancer.joined(link)

    def ended(self, handle: WorkerHandle) -> bool:
        """Take note that a worker is dead; tell whether it has served anybody."""
        slot, link = self._state.core.slots[handle.slot], self.links.get(handle.slot)
        if handle.status == 0 and not slot.planned and slot.ready_at is not None:
            handle.detail = handle.detail or "serve() returned"
        self.groups.leave(handle.slot)
        if link is None:
            return False  # there were no descriptors for it
        spread = self.balancer.core
        served, open_now = spread.taken_by(link.slot)
        unsaid = open_now - spread.still_open(link.slot)  # it has told of these itself
        del self.links[link.slot]
        link.shut()
        self.balancer.gone(link)
        self.queues.drop_worker(link)
        self.groups.fill_in()
        if self.stopped:
            self._cut += unsaid
        limit = self._overrun(handle)
        if limit is not None and slot.planned and not handle.failed:
            self._tell_of_overrun(handle, limit, unsaid, served)
        return served > 0 and not slot.faulty

    def _overrun(self, handle: WorkerHandle) -> DrainLimit | None:
        """Return the limit that a dead worker had to be ended for, if it was one.

        Whoever is ended before that is so since somebody wants the end at once.
        """
        began, others_serve = self._drains.pop(handle.slot)
        if handle.pressed_at is None:
            return None
        limit = drain_limit(
            began,
            self._stopped_at,
            others_serve=others_serve,
            at_end=self._config.drain_timeout,
            replaced=self._config.reload_drain_timeout,
        )
        return limit if handle.pressed_at >= limit.over_at else None

    def _tell_of_overrun(
        self, handle: WorkerHandle, limit: DrainLimit, cut: int, served: int
    ) -> None:
        """Tell what a worker could not, as it hung: that it was late, and what it cost."""
        why = f"it had not ended within the {limit.name} of {limit.seconds:g} s"
        if handle.status is None or handle.status < 0:
            # Of one that was sent SIGKILL, the report says itself that it was killed.
            by = "" if handle.killed else "killed by SIGTERM since "
            handle.detail = handle.detail or by + why
        if cut or handle.late_stacks:
            cost = f": {cut} of {served} connections are cut off" if cut else ""
            warn(
                _LOGGER,
                "%s: worker %d in slot %d was killed since %s%s",
                self._state.config.title,
                handle.pid,
                handle.slot,
                why,
                cost,
                stacks=handle.late_stacks,
            )

    async def broadcast(self, key: Hashable, payload: bytes) -> None:
        """Send a message to every worker, and to those who come later.

        Raises:
            ValueError: If that is too much to remember.

        Cancellation:
            Some may get it, and those who come later do.
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
        # From here on it is in the configuration of whoever has no line yet.
        async with asyncio.TaskGroup() as sending:
            for link in self.links.values():
                sending.create_task(link.send(payload, early=True))

    def begin_drain(self, link: WorkerLink) -> None:
        """Take note that a worker gets nothing more."""
        self._drains[link.slot] = self._state.loop.time(), not self.stopped
        self.balancer.left(link)
        self.groups.fill_in()

    def count_load(self, link: WorkerLink, opened: int, closed: int, cut: int) -> None:
        """Take note of how many connections a worker has had.

        Raises:
            ProtocolError: If that cannot be.
        """
        spread = self.balancer.core
        had, cut_before = spread.totals(link.slot), spread.count_cut_off(link.slot)
        self.balancer.load(link, opened, closed, cut)
        if self.stopped:
            # It has accepted what was waiting, perhaps.
            self._at_end += spread.totals(link.slot) - had
            self._cut += cut - cut_before
        now = self._state.loop.time()
        self._state.performer.perform(
            self._state.core.workers.served(link.slot, closed, now)
        )

    def figures(self, slot: int) -> Figures:
        """Return what there is to be known of a slot."""
        link = self.links.get(slot)
        if link is None:
            return Figures(ready=False, connections=0, had=0, uptime=0.0)
        spread, began_at = self.balancer.core, self._state.handles[slot].began_at
        return Figures(
            ready=link.open,
            connections=spread.connections(slot),
            had=spread.totals(slot),
            uptime=self._state.loop.time() - began_at,
        )

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
            self._stopped_at = self._state.loop.time()
            self.groups.stop()
            spread = self.balancer.core
            self._at_end = sum(spread.connections(slot) for slot in self.links)
            self._cut = sum(map(spread.still_open, self.links))
            for slot, link in self.links.items():
                if link.is_shut:  # else it is about to hear that nobody serves on
                    self._state.handles[slot].requests.tell_of_close()

    def close(self) -> None:
        """Let go of everything; there are no workers any more."""
        self.stop()
        self.balancer.close()
        self.queues.close()
