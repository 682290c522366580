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
from asyncpool._runtime.cluster.balancer import ConnectionBalancer
from asyncpool._runtime.cluster.link import DescriptorSocket, LinkSetup, WorkerLink
from asyncpool._runtime.cluster.listeners import Listeners
from asyncpool._runtime.cluster.message_queues import MessageQueues
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
        queues: What they have sent.
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
        self._groups: dict[int, int] = {}
        self._open_groups: set[int] = set(range(state.config.workers[1]))
        self._stopped = False
        self._stopped_at: float | None = None
        # Since when each drains, and whether others served on then.
        self._drains: dict[int, tuple[float, bool]] = {}
        self._at_end = self._cut = 0
        self._setup = LinkSetup(
            on_taken=self.balancer.taken,
            on_refused=self.balancer.refused,
            on_socket=self.queues.take_socket,
            on_message=self.queues.take_message,
            on_load=self._on_load,
            on_lost=self.balancer.lose,
            on_returned=self.balancer.returned,
            on_listens=lambda _: self._fill_in(),
            on_shut=self._on_shut,
            others_serve=self._others_serve,
        )

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
        link = WorkerLink(handle.slot, handle.generation, keeping, channel, self._setup)
        link.listen(self._sockets_for(handle.slot))
        # Nobody knows of a line that has failed, so nobody would forget it.
        self.links[handle.slot] = link
        self.balancer.core.add(handle.slot)
        self._fill_in()
        return link

    def ready(self, handle: WorkerHandle) -> None:
        """Take note that a worker is ready."""
        if self._state.core.slots[handle.slot].state in UP:
            link = self.links[handle.slot]
            link.open = True
            self._fill_in()  # or it would be handed what it will accept
            self.balancer.joined(link)

    def ended(self, handle: WorkerHandle) -> bool:
        """Take note that a worker is dead; tell whether it has served anybody."""
        slot, link = self._state.core.slots[handle.slot], self.links.get(handle.slot)
        if handle.status == 0 and not slot.planned and slot.ready_at is not None:
            handle.detail = handle.detail or "serve() returned"
        self._leave_group(handle.slot)
        if link is None:
            return False  # there were no descriptors for it
        spread = self.balancer.core
        served, open_now = spread.taken_by(link.slot)
        unsaid = open_now - spread.still_open(link.slot)  # it has told of these itself
        del self.links[link.slot]
        link.shut()
        self.balancer.gone(link)
        self.queues.drop_worker(link)
        self._fill_in()
        if self._stopped:
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

    def _on_shut(self, link: WorkerLink) -> None:
        self._drains[link.slot] = self._state.loop.time(), not self._stopped
        self.balancer.left(link)
        self._fill_in()

    def _on_load(self, link: WorkerLink, opened: int, closed: int, cut: int) -> None:
        spread = self.balancer.core
        had, cut_before = spread.totals(link.slot), spread.count_cut_off(link.slot)
        self.balancer.load(link, opened, closed, cut)
        if self._stopped:
            # It has accepted what was waiting, perhaps.
            self._at_end += spread.totals(link.slot) - had
            self._cut += cut - cut_before
        now = self._state.loop.time()
        self._state.performer.perform(self._state.core.served(link.slot, closed, now))

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
    def outcome(self) -> tuple[int, int]:
        """How many connections were finished since the end began, and cut off."""
        return self._at_end - self._cut, self._cut

    def _others_serve(self) -> bool:
        return not self._stopped

    # What they listen on.

    def _sockets_for(self, slot: int) -> list[tuple[str, socket.socket]]:
        listeners, group = self._config.listeners, None
        if listeners is None or self._config.spread == "handoff" or self._stopped:
            return []
        if self._config.spread == "reuseport":
            group = self._group_of(slot)
            listeners.open_group(group)
            self._open_groups.add(group)
        sockets = listeners.sockets(group)
        return list(zip(listeners.addresses, sockets, strict=True))

    def _leave_group(self, slot: int) -> None:
        """Close the sockets that a dead worker has listened on, if they are too many."""
        group = self._groups.pop(slot, None)
        if group is None or group in self._groups.values():
            return
        if len(self._open_groups) > self._state.core.replacements.sizing.size:
            self._open_groups.discard(group)
            self._fill_in()
            assert self._config.listeners is not None
            self._config.listeners.close_group(group)

    def _group_of(self, slot: int) -> int:
        """Give the worker that begins in *slot* a place, with the sockets that are there.

        That of the worker whose place it takes; or one whose worker is leaving, dead, or
        never was.
        """
        slots = self._state.core.slots
        replaced = slots[slot].replaces
        if replaced is not None and replaced in self._groups:
            group = self._groups[replaced]
        else:
            held = {
                group
                for index, group in self._groups.items()
                if not slots[index].draining
            }
            group = min(set(range(len(held) + 1)) - held)
        self._groups[slot] = group
        return group

    def _fill_in(self) -> None:
        """Accept here in the places where no worker does, and hand that to the others.

        Unless they accept by themselves: a server on ``worker.listening_sockets`` takes nothing else.
        """
        listeners = self._config.listeners
        if listeners is None or self._config.spread != "reuseport" or self._stopped:
            return
        serving = [link for link in self.links.values() if link.open]
        free = self._open_groups - {self._groups.get(link.slot) for link in serving}
        if not serving or not all(link.listens for link in serving):
            free.clear()
        sockets = [sock for group in sorted(free) for sock in listeners.sockets(group)]
        self.balancer.listen_on(sockets)

    # The end.

    def stop(self) -> None:
        """Accept no more connections."""
        if not self._stopped:
            self.balancer.stop()
            self._stopped = True
            self._stopped_at = self._state.loop.time()
            if self._config.listeners is not None:
                self._config.listeners.close()
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
