"""What is asked of Ray.  It is imported when a pool starts, and all of it may block."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

# The first Python for which there is no Ray.
_TOO_NEW = (3, 15)

# Seconds that the head of a cluster has to accept a connection.
_CONNECT_TIMEOUT = 10.0

# Seconds that Ray's processes look for the head of their cluster before they end themselves:
# those of nodes, and every process that is connected, without an exception or a ``finally``.
_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
_NEVER = "1000000000"


def _head_patience() -> float:
    """Return for how many seconds a pool waits for the head: a quarter of Ray's time is left then."""
    text = os.environ.get(_VARIABLE, _NEVER)
    # A parent of this process that has a pool has set it, as below.
    seconds = 60.0 if text == _NEVER else float(text)
    return 0.75 * seconds


HEAD_PATIENCE = _head_patience()

# The names that Ray has for resources, and the options of an actor that ask for them.
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}

# How many calls an actor answers at once.
_AT_ONCE = 64


def load() -> Any:
    """Import Ray.

    Raises:
        ModuleNotFoundError: If it is not installed; the error names the extra.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(_missing(sys.version_info[:2]), name="ray") from None


def _missing(python: tuple[int, ...]) -> str:
    if python >= _TOO_NEW:
        return (
            f"asyncpool.ray needs Ray, of which there is none for Python {python[0]}.{python[1]}: "
            "use Python 3.14 or older"
        )
    return (
        "asyncpool.ray needs Ray, which is not installed: "
        "pip install 'asyncpool-supervised[ray]'"
    )


class RayNode(NamedTuple):
    """A node of the cluster that is alive.

    Attributes:
        node_id: Ray's id of it.
        address: Its IP address.
        cpus: How many CPUs Ray has there.
    """

    node_id: str
    address: str
    cpus: int


class Engine:
    """The connection of this process to a Ray cluster.

    Args:
        address: Where the cluster is; ``None`` for one on this machine that ends with the pool.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._ray: Any = None

    def connect(self) -> None:
        """Connect to the cluster, unless this process is connected already.

        Raises:
            ModuleNotFoundError: If Ray is not installed.
            OSError: If nobody is at the address; a ConnectionError if there is no cluster.
        """
        if "ray" not in sys.modules and self._address is not None:
            # Else Ray ends this process too.  It reads its variables when it is imported.
            os.environ.setdefault(_VARIABLE, _NEVER)
        self._ray = load()
        if self._ray.is_initialized():
            return
        host, _, port = (self._address or "").rpartition(":")
        if host and port.isdecimal():
            # Ray would try for minutes.
            socket.create_connection((host, int(port)), _CONNECT_TIMEOUT).close()
        try:
            self._ray.init(self._address)
        except (RuntimeError, ValueError) as error:
            raise ConnectionError(
                f"there is no Ray cluster at {self._address!r}: {error}"
            ) from error

    @property
    def reference(self) -> type:
        """The class of references to objects in Ray's store."""
        found: type = self._ray.ObjectRef
        return found

    def nodes(self) -> list[RayNode]:
        """Return the nodes that are alive."""
        return [
            RayNode(
                node["NodeID"],
                node["NodeManagerAddress"],
                int(node["Resources"].get("CPU", 0)),
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    def place(
        self, node: RayNode, what: type, resources: Mapping[str, float], *args: Any
    ) -> Any:
        """Have an actor of class *what* start on a node; return a handle of it."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        options: dict[str, Any] = {"num_cpus": 0}
        others = dict(resources)
        for name, option in _OPTIONS.items():
            if name in others:
                options[option] = others.pop(name)
        remote = self._ray.remote(
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_AT_ONCE,
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(
                node_id=node.node_id, soft=False
            ),
            resources=others,
            **options,
        )
        return remote(what).remote(*args)

    def kill(self, actor: Any) -> None:
        """Kill an actor, if it is still there."""
        self._ray.kill(actor)

    def is_dead(self, error: BaseException) -> bool:
        """Tell whether *error* says that an actor is dead, and not only out of reach."""
        errors = self._ray.exceptions
        if isinstance(error, errors.ActorUnavailableError) or self.is_full(error):
            return False
        return isinstance(error, errors.RayError)

    def is_full(self, error: BaseException) -> bool:
        """Tell whether *error* says that a store is full, and may not write to disk."""
        errors = self._ray.exceptions
        return isinstance(error, (errors.ObjectStoreFullError, errors.OutOfDiskError))

    def is_actors(self, error: BaseException) -> bool:
        """Tell whether *error* is about an actor, and not about what it was given."""
        return isinstance(error, self._ray.exceptions.RayActorError)
