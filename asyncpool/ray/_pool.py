"""A pool over the nodes of a Ray cluster."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from asyncpool._core import checks
from asyncpool._engine.options import pool_options
from asyncpool._remote.client import Client
from asyncpool._wire.formats import Codec
from asyncpool.pool import Pool as LocalPool
from asyncpool.ray._ends import PATIENCE
from asyncpool.ray._engine import Engine
from asyncpool.ray._placement import Placement, Plan
from asyncpool.ray._references import References
from asyncpool.sharedpool._remote_pool import RemotePool, data_only
from asyncpool.stats import PoolStats

# What the pools of nodes do not get.
_OF_THE_WHOLE = frozenset(("name", "control"))
_OF_LOCAL_POOLS = frozenset(("trace", "max_traced"))

# What the client decides about each job, and not the pool of a node.
_OF_JOBS = frozenset(
    ("timeout", "queue_timeout", "heartbeat_timeout", "on_cancel", "cancel_grace")
)


class Pool(RemotePool):
    """A pool whose workers are on the nodes of a Ray cluster, for ``async with``.

    It has one *agent* on each node, which Ray starts as an actor, and which has a pool of workers
    there.  Jobs go to agents in batches.  Nodes that come later get an agent, and a node that goes
    costs what its agent had begun.

    It has the calls of a :class:`asyncpool.Pool`: ``submit``, ``map``, ``stream``, ``broadcast``,
    ``worker``, ``options`` and so on.  What is about the pool as a whole, such as ``stats`` and
    ``resize``, has to be awaited.

    Args: Cluster
        address: Where the cluster is, as ``ray.init`` takes it: ``"auto"``, or the host and
            the port of its head.  ``None`` for a cluster on this machine that ends with this
            process.  It is not used if this process is connected to Ray already.
        nodes: On how many nodes there are workers at the most; ``None`` for all.
        workers_per_node: How many workers each node has; ``None`` for as many as Ray has CPUs there.
            Nodes without a CPU have none then.
        resources: What Ray sets aside for the workers of each node, by Ray's names, such as
            ``{"CPU": 4, "GPU": 1}``.  By default a CPU for each worker.
        start_timeout: Seconds until the first agent must be ready.
        node_timeout: Seconds without a sign of life after which an agent is lost, and with it
            the jobs that it has begun (:exc:`asyncpool.errors.NodeLostError`).  An agent gives the
            jobs of a client up that it has not heard for two thirds of that.

    Args: Jobs
        max_queued: How many jobs may wait with the client; ``None`` for no bound.
        codec: As in :class:`asyncpool.Pool`, and so are *functions* and *errors*.
        functions: Likewise.
        errors: Likewise.
        **options: Other options of :class:`asyncpool.Pool`.  *name* and *control* are for the
            pool as a whole.  The pools of nodes get the others, such as *preload*, *initializer*
            and *worker_limits*.  There is no default for what :meth:`options` sets for each job,
            and no *trace*: ``asyncpool.opentelemetry`` has spans of the jobs.

    Raises:
        ValueError: If an argument is out of range, or *address* one of Ray's client (``ray://``).
        TypeError: If an argument is of the wrong type, or there is no such option.
        ImportError: If the package of *codec* is not installed.
    """

    def __init__(
        self,
        address: str | None = "auto",
        *,
        nodes: int | None = None,
        workers_per_node: int | None = None,
        resources: Mapping[str, float] | None = None,
        start_timeout: float = 60.0,
        node_timeout: float = 60.0,
        max_queued: int | None = None,
        codec: Literal["json", "msgspec"] | Codec | None = None,
        functions: Iterable[Any] | None = None,
        errors: Iterable[type[BaseException]] = (),
        **options: Any,
    ) -> None:
        if address is not None:
            _check_address(address)
        check_count = checks.optional(checks.at_least(1))
        check_count("nodes", nodes)
        check_count("workers_per_node", workers_per_node)
        check_count("max_queued", max_queued)
        checks.PERIOD("start_timeout", start_timeout)
        checks.PERIOD("node_timeout", node_timeout)
        data = data_only(codec, functions, errors)
        if codec is not None:
            options |= {"codec": codec, "functions": functions, "errors": errors}
        whole = _check_options(options)
        super().__init__(
            "the Ray pool",
            whole["name"],
            max_queued=max_queued,
            data=data,
            control=whole["control"],
            concurrency=whole["concurrency"],
        )
        self._engine = Engine(address)
        self._plan = Plan(
            nodes=nodes,
            workers=workers_per_node,
            resources=None if resources is None else dict(resources),
            options={it: options[it] for it in options.keys() - _OF_THE_WHOLE},
            codec=self._codec,
            lease=node_timeout / PATIENCE,
        )
        self._start_timeout = start_timeout
        self._placement: Placement | None = None

    async def nodes(self) -> dict[str, PoolStats]:
        """Return the figures of the pool of each agent, by the name of the agent.

        A name is the address of the node, the begin of Ray's id of it, and the process of the
        agent.
        """
        return {node.name: stats for node, stats in await self._ask_all("stats")}

    async def start(self) -> None:
        """Connect to the cluster, and wait until one agent is ready.

        Raises:
            ModuleNotFoundError: If Ray is not installed.
            OSError: If nobody is at the address; a ConnectionError if there is no cluster, or it
                has no node with a CPU.
            ProtocolError: If all agents have another version of asyncpool or Python.
            PoolBrokenError: If no agent can start workers.
            TimeoutError: If no agent is ready after *start_timeout*.
            RuntimeError: If it was started before.

        Cancellation:
            Safe: nothing is left on the nodes.
        """
        await self._start()

    async def _reach(self, client: Client) -> None:
        placement = self._placement = Placement(client, self._engine, self._plan)
        seconds = self._start_timeout
        limit = asyncio.timeout(seconds)
        trouble = "the Ray cluster does not answer"
        try:
            async with limit:
                await placement.connect()
                trouble = "Ray may have no resources left for one"
                client.stored = References(
                    self._engine, data_only=self._data is not None
                )
                await placement.start()
        except TimeoutError:
            if not limit.expired():  # the address has not answered: there is a text
                raise
            text = f"no agent of the Ray pool is ready after start_timeout ({seconds:g} s): {trouble}"
            raise TimeoutError(text) from None

    async def _leave(self) -> None:
        if self._placement is not None:
            await self._placement.close()


def _check_address(address: object) -> None:
    checks.TEXT("address", address)
    if str(address).startswith("ray://"):
        raise ValueError(
            "address must be that of the cluster's head, and not one of Ray's client: "
            f"{address!r}"
        )


def _check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check what the pools of nodes are made with, here and not on a node; return all of it."""
    wrong = _OF_JOBS & options.keys()
    if wrong:
        raise TypeError(
            f"{', '.join(sorted(wrong))}: each job has its own, see options()"
        )
    if wrong := _OF_LOCAL_POOLS & options.keys():
        raise TypeError(
            f"{', '.join(sorted(wrong))}: a pool over Ray writes no trace, "
            "asyncpool.opentelemetry has spans of its jobs"
        )
    # Not LocalPool(): that looks at the main module, which workers elsewhere cannot import.
    given = inspect.signature(LocalPool).bind(1, **options)
    given.apply_defaults()
    return pool_options(given.arguments)
