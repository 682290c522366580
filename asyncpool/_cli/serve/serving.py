"""One run of ``asyncpool serve``."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from asyncpool._cli.logs.command_log import CommandLog, cannot_be_loaded
from asyncpool._cli.shared_pools import shared_by_name
from asyncpool._cluster import log_messages as say
from asyncpool._cluster.listeners import addresses_locked
from asyncpool._wire.text import users_own
from asyncpool.cluster import Cluster, asgi, wsgi
from asyncpool.cluster._run import GAVE_UP, Operation
from asyncpool.events import Crash

if TYPE_CHECKING:
    from asyncpool._cli.serve.file_changes import Changes
    from asyncpool.prometheus._page import MetricsPage

# How long the workers of a killed master may have its address, and a little more.
_ADDRESS_PATIENCE = 2.0
_ADDRESS_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """What is served, and how; ``--help`` explains each.

    Attributes:
        target: ``package.module:name``.
        interface: Its interface: ``"asgi"``, ``"wsgi"`` or ``"serve"``.
        options: The options of :func:`asyncpool.cluster.asgi` or ``wsgi``.
        cluster: The options of the cluster.
        name: The name of the cluster.
        control: The name or path of the control socket, if one was chosen.
        watch: Whether changes of the code reload it.
        metrics: Where Prometheus finds the figures, if it is to.
        pools: What makes the pools that all workers share, by name.
    """

    target: str
    interface: str
    options: dict[str, Any]
    cluster: dict[str, Any]
    name: str
    control: str | None
    watch: bool
    metrics: str | None = None
    pools: dict[str, str] = field(default_factory=dict)


class _Unread(Cluster):
    """A cluster whose messages no code can read."""

    async def start(self) -> Self:
        """Start, and let no worker wait for a reader."""
        await super().start()
        self._service().queues.drop_messages()
        return self


class Serving:
    """Serves until it is told to end.

    Args:
        plan: What to serve, and how.
        log: The log of the command.
    """

    def __init__(self, plan: ServingPlan, log: CommandLog) -> None:
        self._plan = plan
        self._log = log
        self._began = time.monotonic()
        self._up = asyncio.Event()
        self._failures: list[Crash] = []
        self._operation: Operation | None = None
        self._cluster: Cluster | None = None
        self._page: MetricsPage | None = None

    async def run(self) -> int:
        """Serve, and return the exit code.

        Raises:
            OSError: If an address cannot be bound.
            ValueError: If an option makes no sense.
            TypeError: Likewise.
        """
        if (task := asyncio.current_task()) is not None:
            task.set_name(f"asyncpool serve {self._plan.name}")
        async with shared_by_name(self._plan.pools):
            return await self._run_measured()

    async def _run_measured(self) -> int:
        if self._plan.metrics is None:
            return await self._run()
        # Imported here since it is an extra, which few need.
        from asyncpool.prometheus._page import MetricsPage  # noqa: PLC0415

        try:
            async with addresses_locked([self._plan.metrics]):
                page = MetricsPage(self._plan.metrics)
        except OSError as error:
            raise OSError(error.errno, f"--metrics: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"--metrics: {error}") from None
        async with page as self._page:
            return await self._run()

    async def _run(self) -> int:
        if not self._plan.watch:
            return await self._serve()
        # Imported here since it is an extra, which few need.
        from asyncpool._cli.serve.file_changes import Changes  # noqa: PLC0415

        async with Changes(Path.cwd()) as changes:
            while True:
                # What changes from here on may be too late for the workers that start.
                known = changes.count
                watching = asyncio.create_task(
                    self._reload_at(changes, known), name="asyncpool serve: reload"
                )
                try:
                    code = await self._serve()
                finally:
                    watching.cancel()
                if not self._failures:
                    return code
                self._log.tell(say.CHANGE_AWAITED, {})
                await changes.after(known)

    async def _serve(self) -> int:
        give_up_at = time.monotonic() + _ADDRESS_PATIENCE
        while True:
            try:
                return await self._serve_once()
            except OSError as error:
                late = time.monotonic() > give_up_at
                if error.errno != errno.EADDRINUSE or late:
                    raise
            await asyncio.sleep(_ADDRESS_EVERY)

    async def _serve_once(self) -> int:
        plan = self._plan
        self._failures.clear()
        self._log.start_over()
        self._began = time.monotonic()
        target: Any = plan.target
        if plan.interface != "serve":
            adapter = asgi if plan.interface == "asgi" else wsgi
            target = adapter(plan.target, **plan.options)
        self._cluster = cluster = _Unread(
            target, name=plan.name, on_crash=self._crashed, **plan.cluster
        )
        if self._page is not None:
            from asyncpool.prometheus import register  # noqa: PLC0415 - as above

            register(cluster, self._page.registry)
        self._operation = operation = Operation(
            cluster,
            control=plan.control,
            on_ready=self._ready,
            # What cannot be loaded may wait for a change, and obey Ctrl-C meanwhile.
            is_last=lambda: not (plan.watch and self._failures),
        )
        code = await operation.run()
        if self._failures:
            self._explain(self._failures[0])
            return GAVE_UP
        self._log.started()
        if operation.broken is not None:
            last = operation.broken.crashes[-1:]
            self._log.tell(
                say.SERVER_GAVE_UP,
                {"target": plan.target, "reason": operation.broken.reason},
                last="".join(f"; last: {crash}" for crash in last),
            )
        return code

    async def _reload_at(self, changes: Changes, known: int) -> None:
        """Reload after each change."""
        while True:
            await changes.after(known)
            await self._up.wait()
            assert self._operation is not None
            known = changes.count
            self._log.tell(say.CODE_CHANGED, {"files": changes.names})
            self._operation.reload_soon(f"changes of {changes.names}")

    def _ready(self) -> None:
        assert self._cluster is not None
        assert self._operation is not None
        self._up.set()
        self._log.started()
        addresses = self._cluster.stats().addresses
        lines = [""]
        for address in addresses:
            shown = address
            if self._plan.interface != "serve":
                secure = "s" if "ssl_certfile" in self._plan.options else ""
                shown = address.replace("tcp://", f"http{secure}://")
            lines.append(f"  {shown}")
        if self._page is not None:
            for address in self._page.addresses:
                page = address.replace("tcp://", "http://")
                lines.append(f"  metrics: {page}/metrics")
        lines += [
            f"  pool {name}: asyncpool recycle {name}-{os.getpid()}"
            for name in self._plan.pools
        ]
        if self._operation.control_path is not None:
            which = self._operation.which
            lines.append(f"  asyncpool status | reload | stop {which}")
        lines.append("  Ctrl-C drains and ends, a second one ends at once")
        extra = {
            "target": self._plan.target,
            "addresses": ", ".join(addresses),
            "seconds": round(time.monotonic() - self._began, 3),
        }
        self._log.tell(say.SERVING, extra, lines="\n".join(lines))

    def _crashed(self, crash: Crash) -> None:
        """End at once if the code cannot be loaded: to try again would not help."""
        if self._up.is_set() or self._failures or not cannot_be_loaded(crash):
            return
        self._failures.append(crash)
        assert self._operation is not None
        self._operation.stop()
        self._operation.stop()

    def _explain(self, crash: Crash) -> None:
        """Say why the code cannot be loaded, and what to do about it."""
        target = self._plan.target
        detail = crash.detail.removeprefix("serve failed: ")
        module = target.partition(":")[0]
        own = {f"'{module}'", f"'{module.partition('.')[0]}'"}
        named = any(name in detail for name in own)
        lines = [""]
        if detail.startswith("ModuleNotFoundError: ") and named:
            lines.append(
                "  Modules are found in the current folder, in PYTHONPATH, in what is "
                "installed.\n  Is this the folder that you meant, and the environment?"
            )
        elif detail.startswith("AttributeError: module ") and named:
            lines.append(f"  What is it called in {module}?  Write {module}:NAME.")
        elif traceback := users_own(crash.stack):
            lines.append(traceback)
        extra = {"target": target, "reason": detail}
        self._log.tell(say.NOT_LOADED, extra, lines="\n".join(lines))
