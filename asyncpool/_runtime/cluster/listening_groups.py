"""Which worker listens on which sockets, if each worker has its own.

With ``reuseport`` there is a *group* of sockets for each worker that the cluster wants, with
one socket for each address.  A replacement gets the group of the worker that it replaces.  So
no connection is lost that waits in those sockets.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from asyncpool._runtime.cluster.balancer import ConnectionBalancer
from asyncpool._runtime.cluster.link import WorkerLink
from asyncpool._runtime.state.pool_state import PoolState

if TYPE_CHECKING:
    from asyncpool._runtime.cluster.service import ServingConfig


class ListeningGroups:
    """The listening sockets of one cluster, and which worker has them.

    Args:
        config: The addresses, and how workers get connections.
        state: The state of the cluster's supervisor.
        balancer: Accepts on the groups that no worker has.
        links: The links to the workers, by slot.
    """

    def __init__(
        self,
        config: ServingConfig,
        state: PoolState,
        balancer: ConnectionBalancer,
        links: dict[int, WorkerLink],
    ) -> None:
        self._config = config
        self._state = state
        self._balancer = balancer
        self._links = links
        self._groups: dict[int, int] = {}  # by slot
        self._open_groups: set[int] = set(range(state.config.workers[1]))
        self._stopped = False

    def sockets_for(self, slot: int) -> list[tuple[str, socket.socket]]:
        """Return the sockets of the worker that begins in *slot*, each with its address."""
        listeners, group = self._config.listeners, None
        if listeners is None or self._config.spread == "handoff" or self._stopped:
            return []
        if self._config.spread == "reuseport":
            group = self._group_of(slot)
            listeners.open_group(group)
            self._open_groups.add(group)
        sockets = listeners.sockets(group)
        return list(zip(listeners.addresses, sockets, strict=True))

    def leave(self, slot: int) -> None:
        """Close the sockets of a dead worker, if there are more groups than workers."""
        group = self._groups.pop(slot, None)
        if group is None or group in self._groups.values():
            return
        if len(self._open_groups) > self._state.core.replacements.sizing.size:
            self._open_groups.discard(group)
            self.fill_in()
            assert self._config.listeners is not None
            self._config.listeners.close_group(group)

    def fill_in(self) -> None:
        """Accept in the master on groups without a worker, and hand the connections to others.

        That is not done if a worker runs a server on ``worker.listening_sockets``: such a server
        takes no connections from the master.
        """
        listeners = self._config.listeners
        if listeners is None or self._config.spread != "reuseport" or self._stopped:
            return
        serving = [link for link in self._links.values() if link.open]
        free = self._open_groups - {self._groups.get(link.slot) for link in serving}
        if not serving or not all(link.listens for link in serving):
            free.clear()
        sockets = [sock for group in sorted(free) for sock in listeners.sockets(group)]
        self._balancer.listen_on(sockets)

    def stop(self) -> None:
        """Close all sockets."""
        self._stopped = True
        if self._config.listeners is not None:
            self._config.listeners.close()

    def _group_of(self, slot: int) -> int:
        """Give the worker that begins in *slot* a group, and return the group's number.

        It is the group of the worker that it replaces, or one whose worker leaves, is dead, or
        never came.
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
