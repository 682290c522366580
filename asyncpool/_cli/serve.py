"""``asyncpool serve``: a server, in worker processes that share its port."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import inspect
import json
import logging
import os
import ssl
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import click

from asyncpool._cli.logs import CommandLog, LogOptions, cannot_be_loaded
from asyncpool._cli.parameters import (
    CommandError,
    Exit,
    RefusedError,
    kinds_of,
    need,
    options_of,
    size,
    type_of,
)
from asyncpool._cli.shared_pools import named_pools, shared_by_name
from asyncpool._cluster import log_messages as say
from asyncpool._cluster.first_process import look_after_orphans
from asyncpool._cluster.listeners import addresses_locked
from asyncpool._core.options import MAX_WORKERS, RestartPolicy, WorkerLimits
from asyncpool._engine.machine import raise_descriptor_limit
from asyncpool._wire.text import NAMES, is_name, users_own
from asyncpool.cluster import Cluster, asgi, wsgi
from asyncpool.cluster._run import GAVE_UP, Operation
from asyncpool.errors import AsyncPoolError
from asyncpool.events import Crash

if TYPE_CHECKING:
    from asyncpool.prometheus._page import MetricsPage

# The options, and what is refused before anything starts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says, beside the options of the cluster and of its servers.

    Attributes:
        target: ``package.module:name``.
        bind: Where to listen: HOST:PORT, [::1]:PORT, :PORT for all interfaces, unix:///run/app.sock
            (with ?mode=660), fd://3 for an inherited socket, or systemd: for those of a .socket
            unit.  Port 0 is one that is free.  Several may be given.
        interface: What MODULE:NAME is: an ASGI application, which uvicorn runs, a WSGI application,
            or an 'async def serve(worker)' of your own.
        max_restarts: Give up, with exit code 3, after more restarts than that within --within; by
            default a server never gives up.
        within: For --max-restarts; 60 by default.
        max_connections: Replace a worker after so many connections, or somewhat fewer.
        ssl_keyfile_password_file: A file whose first line is the password of the key.
        option: Another option of uvicorn.Config, such as ws_ping_interval=10 or server_header=false.
            Several may be given.
        access_log: Log every request.
        access_log_format: Do so with such a line, as '%(method)s %(path)s %(status)d %(ms)d'.
        name: What other commands call it; by default the module's name, with the pid if that is
            taken.  One that is given must be free.
        control: Where the control socket is, if not among those of this user; '' for none.
        metrics: Show figures for Prometheus at http://ADDRESS/metrics: HOST:PORT, or a PORT of
            127.0.0.1; whoever can connect can read them.
        pool: A pool that all workers share, as the function returns it; they find it by
            asyncpool.shared_pool(NAME).  It survives reloads.  Several may be given.
        reload_on_change: Reload when a Python file in the current folder changes (for development).
    """

    target: str
    bind: tuple[str, ...] = ("127.0.0.1:8000",)
    interface: Literal["asgi", "wsgi", "serve"] = "asgi"
    max_restarts: int | None = None
    within: float | None = None
    max_connections: int | None = None
    ssl_keyfile_password_file: str | None = None
    option: tuple[str, ...] = ()
    access_log: bool = False
    access_log_format: str | None = None
    name: str | None = None
    control: str | None = None
    metrics: str | None = None
    pool: tuple[str, ...] = ()
    reload_on_change: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OfUvicorn:
    """The options of uvicorn, which need not be installed, that servers need most.

    Attributes:
        ssl_certfile: Serve TLS, with this certificate and its chain (PEM).
        ssl_keyfile: The certificate's key, if that is not in the same file.
        root_path: What a proxy takes off each path.
        env_file: Variables (NAME=VALUE) that workers have before they import the application; those
            that are set already stay.
        factory: NAME makes the application when it is called.
        forwarded_allow_ips: Believe X-Forwarded-For and -Proto of these peers, separated by commas;
            '*' for all.  By default of none.
        limit_concurrency: Answer 503 while a worker has so many connections or requests.
    """

    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    root_path: str | None = None
    env_file: str | None = None
    factory: bool = False
    forwarded_allow_ips: str | None = None
    limit_concurrency: int | None = None


_FILE = {"type": click.Path(exists=True, dir_okay=False, readable=True)}
_SIZE = {"type": size, "metavar": "SIZE"}
_POSITIVE = {"type": click.IntRange(min=1)}

_OF_CLUSTER = (
    *("workers", "spread", "worker_loop", "start_timeout", "ping_timeout"),
    *("drain_timeout", "reload_drain_timeout", "max_surge", "launcher", "preload"),
    "backlog",
)
_OF_LIMITS = "max_age", "max_memory", "kill_memory", "nice"
_OF_SERVERS = "request_timeout", "header_timeout", "header_size", "body_size"

_BODY = """The most bytes of a request's body, such as 10M; more are answered by 413, or cut a
response that has begun.  By default any number."""

_VARIABLES = "ASYNCPOOL_SERVE"

# What is an option of the command, rather than of uvicorn.
_ELSEWHERE = {
    "backlog": "--backlog",
    "fd": "--bind fd://N",
    "host": "--bind",
    "loop": "--loop",
    "port": "--bind",
    "reload": "--reload-on-change",
    "timeout_graceful_shutdown": "--drain-timeout",
    "timeout_worker_healthcheck": "--ping-timeout",
    "uds": "--bind unix:PATH",
    "workers": "--workers",
}


def _taken(given: dict[str, Any], *names: str, of: Any = None) -> dict[str, Any]:
    """Take options out of those that were given: by their names, or all *of* a record."""
    return {it: given.pop(it) for it in names or [field.name for field in fields(of)]}


def _configure(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
    """Have a TOML file give defaults; the callback of an option."""
    if path is None:
        return
    try:
        told = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.BadParameter(f"{path}: {error}") from None
    taken = {flag.strip("-"): it for it in ctx.command.params for flag in it.opts}
    if unknown := told.keys() - taken:
        raise click.BadParameter(f"{path}: there is no option {min(unknown)}")
    found: dict[str, Any] = {}
    for name, value in told.items():
        each = value if isinstance(value, list) else [value]
        # As text, which each option checks.
        is_list = getattr(taken[name], "multiple", False)
        found[taken[name].name or ""] = [*map(str, each)] if is_list else str(value)
    ctx.default_map = found


@click.command(
    "serve",
    short_help="Serve an application with several workers.",
    context_settings={"auto_envvar_prefix": _VARIABLES},
)
@click.argument("target", metavar="MODULE:NAME")
@click.option(
    "--config",
    type=_FILE["type"],
    is_eager=True,
    expose_value=False,
    callback=_configure,
    help="A TOML file with options, such as workers = 4; what is given otherwise counts more.",
)
@options_of(
    Asked,
    bind={"flags": ["-b", "--bind"], "multiple": True, "metavar": "ADDRESS"},
    max_restarts=_POSITIVE,
    max_connections=_POSITIVE,
    ssl_keyfile_password_file=_FILE,
    option={"flags": ["-o", "--option"], "metavar": "NAME=VALUE"},
    pool={"metavar": "NAME=MODULE:FUNCTION"},
)
@options_of(
    Cluster,
    *_OF_CLUSTER,
    workers={
        "flags": ["-w", "--workers"],
        "type": click.IntRange(1, MAX_WORKERS),
        "envvar": [f"{_VARIABLES}_WORKERS", "WEB_CONCURRENCY"],
    },
    worker_loop={"flags": ["--loop"], "envvar": f"{_VARIABLES}_LOOP"},
    # What listen() takes; the kernel has a limit of its own, below that.
    backlog={"type": click.IntRange(1, (1 << 31) - 1)},
)
@options_of(WorkerLimits, *_OF_LIMITS, max_memory=_SIZE, kill_memory=_SIZE)
@options_of(asgi, *_OF_SERVERS, header_size=_SIZE, body_size=_SIZE | {"help": _BODY})
@options_of(wsgi, "threads")
@options_of(
    OfUvicorn,
    ssl_certfile=_FILE,
    ssl_keyfile=_FILE,
    env_file=_FILE,
    limit_concurrency=_POSITIVE,
)
@options_of(LogOptions)
def serve_command(*, log_level: str, log_format: str, **given: Any) -> None:
    """Serve an application in worker processes that are restarted, reloaded and drained.

    The port stays open whatever becomes of workers: connections wait while one is
    replaced.  A worker that crashes is replaced at once, however often; new code that does
    not start is tried again, with pauses between.

    \b
    asyncpool serve app:app --bind :8000 --workers 4
    asyncpool serve app:app --reload-on-change
    asyncpool serve chat:serve --interface serve --bind unix:///run/chat.sock

    \b
    Signals:
      TERM, INT   finish connections and end; again: end at once
      HUP         replace all workers, --max-surge at a time, by new code
      TTIN, TTOU  one worker more, one less
      USR1        log the stacks of all workers

    \b
    Exit codes:
      0        it was stopped, and has drained
      1        it could not listen, or have its control socket
      2        a mistake in the command
      3        the code cannot be loaded, or no worker can be kept alive
      130, 143 it was interrupted twice, and did not drain
    """  # noqa: D301 - \b is click's
    asked = Asked(**_taken(given, of=Asked))
    module, colon, attribute = asked.target.partition(":")
    if not (module and colon and attribute):
        raise CommandError(f"{asked.target!r} is not MODULE:NAME, such as app:app")
    if "/" in module or module.endswith(".py"):
        meant = module.removesuffix(".py").replace("/", ".").strip(".")
        raise CommandError(
            f"{module} is a file, and a module's name is wanted: {meant}:{attribute}"
        )
    if asked.name is not None and not is_name(asked.name):
        raise CommandError(f"--name: {asked.name!r} is no name, which is {NAMES}")
    if asked.reload_on_change and given["preload"]:
        raise CommandError(
            "what is preloaded is not loaded anew: --reload-on-change or not"
        )
    if asked.within is not None and asked.max_restarts is None:
        raise CommandError(
            "--within says for how long --max-restarts counts: give both"
        )
    options = _server_options(asked, given)
    try:
        limits = _taken(given, *_OF_LIMITS)
        worker_limits = WorkerLimits(max_jobs=asked.max_connections, **limits)
    except ValueError as error:
        raise CommandError(str(error)) from None
    restart_policy = RestartPolicy()
    if asked.max_restarts is not None:
        restart_policy = RestartPolicy.limited(asked.max_restarts, asked.within or 60.0)
    cluster = {
        "name": asked.name or (module if is_name(module) else "server"),
        "bind": asked.bind,
        "worker_limits": worker_limits,
        "restart_policy": restart_policy,
        **given,
    }
    serving = Serving(asked, options, cluster, CommandLog(json=log_format == "json"))
    raise_descriptor_limit()
    with contextlib.suppress(Exception):  # for ps; an extra
        title = f"asyncpool: master of {cluster['name']}"
        importlib.import_module("setproctitle").setproctitle(title)
    if os.getpid() == 1:
        look_after_orphans()
    sys.exit(_run(serving, getattr(logging, log_level.upper())))


def _server_options(asked: Asked, given: dict[str, Any]) -> dict[str, Any]:
    """Take out of *given* the options of what serves the application, if it is one."""
    uvicorn, server = _taken(given, of=OfUvicorn), _taken(given, *_OF_SERVERS)
    threads = _taken(given, "threads")
    if asked.metrics is not None:
        need("prometheus_client", "prometheus", "--metrics")
    if asked.reload_on_change:
        need("watchfiles", "reload", "--reload-on-change")
    if asked.interface == "serve":
        flags = uvicorn | {"option": asked.option, "access_log": asked.access_log}
        flags["access_log_format"] = asked.access_log_format
        for name, value in flags.items():
            if value:
                raise CommandError(
                    f"--{name.replace('_', '-')} is for applications: with --interface serve "
                    "it would change nothing"
                )
        return {}
    need("uvicorn", "cluster", f"--interface {asked.interface}")
    password_file = asked.ssl_keyfile_password_file
    server |= read_options(asked.option, uvicorn, password_file=password_file)
    server["access_log"] = asked.access_log_format or asked.access_log
    return server | (threads if asked.interface == "wsgi" else {})


def _run(serving: Serving, level: int) -> int:
    loop_factory = None
    if serving.cluster["worker_loop"] == "uvloop" and find_spec("uvloop"):
        import uvloop  # noqa: PLC0415 - an extra

        loop_factory = uvloop.new_event_loop
    try:
        with (
            serving.log.on(level),
            asyncio.Runner(loop_factory=loop_factory) as runner,
        ):
            return runner.run(serving.run())
    except KeyboardInterrupt:  # while there is no cluster to obey it
        return Exit.INTERRUPTED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise RefusedError(f"{where}{error.strerror or error}") from None
    except (ValueError, TypeError, AsyncPoolError) as error:
        raise CommandError(str(error)) from None


def read_options(
    words: tuple[str, ...], given: Mapping[str, Any], *, password_file: str | None
) -> dict[str, Any]:
    """Return options of uvicorn from ``NAME=VALUE`` and from the command's own.

    Args:
        words: ``NAME=VALUE``, as the user wrote them.
        given: The command's own options, by uvicorn's names; ``None`` if one is not given.
        password_file: Where the password of the key is.

    Raises:
        CommandError: If there is no such option, its value is of another type, or it was given
            in both ways; if there is no such file, or the certificate cannot be loaded.
    """
    import uvicorn  # noqa: PLC0415 - an extra, which only workers need otherwise

    known = inspect.signature(uvicorn.Config).parameters
    hints = get_type_hints(uvicorn.Config.__init__)
    found = {name: value for name, value in given.items() if value not in {None, False}}
    for word in words:
        name, equals, text = word.partition("=")
        if not (equals and name.isidentifier()):
            raise CommandError(f"--option: {word!r} is not NAME=VALUE")
        if name in _ELSEWHERE:
            raise CommandError(f"--option: {name} is the command's: {_ELSEWHERE[name]}")
        if name not in known or name == "app":
            near = get_close_matches(name, known, 1)
            hint = f"; is {near[0]} meant?" if near else ""
            raise CommandError(
                f"--option: uvicorn {uvicorn.__version__} has no {name}{hint}"
            )
        if name in found and name in given:
            raise CommandError(
                f"--option: {name} is given twice, by an option of its own too"
            )
        found[name] = _typed(name, text, hints.get(name, Any))
    if password_file is not None:
        lines = Path(password_file).read_text(encoding="utf-8").splitlines()
        found["ssl_keyfile_password"] = lines[0] if lines else ""
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "env_file"):
        path = found.get(name)
        if path is not None and not Path(path).is_file():
            raise CommandError(f"--option: {name}: there is no file {path}")
    _check_certificate(found)
    return found


def _typed(name: str, text: str, hint: Any) -> Any:
    """Return the value that a text stands for.

    Raises:
        CommandError: If the text is no value of that type.
    """
    try:
        if (type := type_of(kinds_of(hint))) is not None:  # noqa: A001
            return type.convert(text, None, None)
        return json.loads(text)
    except click.BadParameter as error:
        raise CommandError(f"--option: {name}: {error.message}") from None
    except (ValueError, RecursionError):
        raise CommandError(
            f"--option: {name} is a list or an object, in JSON, not {text!r}"
        ) from None


def _check_certificate(options: Mapping[str, Any]) -> None:
    certificate, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
    if certificate is None:
        if key is not None:
            raise CommandError("a key needs its certificate: --ssl-certfile FILE")
        return
    # A prompt for a password at the terminal would have to be answered in each worker.
    password = options.get("ssl_keyfile_password", "")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password)
    except (OSError, ValueError) as error:
        named = f"{certificate} and {key}" if key else f"{certificate}"
        raise CommandError(
            f"{named}: the certificate and its key cannot be loaded: {error}"
        ) from None


# One run.

# How long the workers of a killed master may have its address, and a little more.
_ADDRESS_PATIENCE = 2.0
_ADDRESS_EVERY = 0.1


class Serving:
    """Serves until it is told to end.

    Args:
        asked: What the command line says.
        options: The options of :func:`asyncpool.cluster.asgi` or ``wsgi``.
        cluster: The options of the cluster.
        log: The log of the command.
    """

    def __init__(
        self,
        asked: Asked,
        options: dict[str, Any],
        cluster: dict[str, Any],
        log: CommandLog,
    ) -> None:
        self.options, self.cluster, self.log = options, cluster, log
        self._asked = asked
        self._pools = named_pools(asked.pool)
        self._control = asked.name
        if asked.control is not None:
            # A path, though a word without a slash could be a name as well.
            self._control = asked.control and os.path.abspath(asked.control)  # noqa: PTH100
        self._began = time.monotonic()
        self._up = asyncio.Event()
        self._failures: list[Crash] = []
        self._page: MetricsPage | None = None
        self._changed = asyncio.Event()
        self._names = ""  # of the files of the last change

    async def run(self) -> int:
        """Serve, and return the exit code.

        Raises:
            OSError: If an address cannot be bound.
            ValueError: If an option makes no sense.
            TypeError: Likewise.
        """
        asked = self._asked
        if (task := asyncio.current_task()) is not None:
            task.set_name(f"asyncpool serve {self.cluster['name']}")
        async with contextlib.AsyncExitStack() as stack:
            pools = await stack.enter_async_context(shared_by_name(self._pools))
            if asked.metrics is not None:
                page = await _metrics_page(asked.metrics)
                self._page = await stack.enter_async_context(page)
                self._export(*pools)
            if not asked.reload_on_change:
                return await self._serve()
            ended = asyncio.Event()
            watching = asyncio.create_task(
                self._watch_files(ended), name="asyncpool serve: watch files"
            )
            stack.push_async_callback(asyncio.wait, {watching})
            stack.callback(ended.set)
            while True:
                # What changes from here on may be too late for the workers that start.
                self._changed.clear()
                reloading = asyncio.create_task(
                    self._reload_at_changes(), name="asyncpool serve: reload"
                )
                try:
                    code = await self._serve()
                finally:
                    reloading.cancel()
                if not self._failures:
                    return code
                self.log.tell(say.CHANGE_AWAITED, {})
                await self._changed.wait()

    def _export(self, *shown: Any) -> None:
        if self._page is not None:
            from asyncpool.prometheus import register  # noqa: PLC0415 - an extra

            for it in shown:
                register(it, self._page.registry)

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
        asked = self._asked
        self._failures.clear()
        self.log.starting = True
        self._began = time.monotonic()
        target: Any = asked.target
        if asked.interface != "serve":
            target = {"asgi": asgi, "wsgi": wsgi}[asked.interface](
                target, **self.options
            )
        cluster = Cluster(target, on_crash=self._crashed, **self.cluster)
        cluster._worker_log = self.log.of_workers()  # noqa: SLF001 - the command's own
        self._export(cluster)
        self._operation = operation = Operation(
            cluster,
            control=self._control,
            on_ready=lambda: self._ready(cluster),
            # What cannot be loaded may wait for a change, and obey Ctrl-C meanwhile.
            is_last=lambda: not (asked.reload_on_change and self._failures),
        )
        code = await operation.run()
        if self._failures:
            self._explain(self._failures[0])
            return GAVE_UP
        self.log.starting = False
        if operation.broken is not None:
            last = operation.broken.crashes[-1:]
            self.log.tell(
                say.SERVER_GAVE_UP,
                {"target": asked.target, "reason": operation.broken.reason},
                last="".join(f"; last: {crash}" for crash in last),
            )
        return code

    async def _watch_files(self, ended: asyncio.Event) -> None:
        """Note changes of Python files in the current folder, subfolders included."""
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415 - an extra

        async for changes in awatch(
            Path.cwd(),
            watch_filter=PythonFilter(),
            stop_event=ended,
            raise_interrupt=False,
        ):
            names = sorted({Path(path).name for _, path in changes})
            self._names = ", ".join(names[:3]) + ", …" * (len(names) > 3)  # noqa: PLR2004
            self._changed.set()

    async def _reload_at_changes(self) -> None:
        while True:
            await self._changed.wait()
            await self._up.wait()
            self._changed.clear()
            self.log.tell(say.CODE_CHANGED, {"files": self._names})
            self._operation.reload_soon(f"changes of {self._names}")

    def _ready(self, cluster: Cluster) -> None:
        # No code here reads the messages of workers, and none of them is to wait for a reader.
        cluster._service().queues.drop_messages()  # noqa: SLF001
        operation, addresses = self._operation, cluster.stats().addresses
        self._up.set()
        self.log.starting = False
        http = "https://" if "ssl_certfile" in self.options else "http://"
        scheme = "tcp://" if self._asked.interface == "serve" else http
        lines = ["", *(f"  {it.replace('tcp://', scheme)}" for it in addresses)]
        for address in self._page.addresses if self._page is not None else ():
            page = address.replace("tcp://", "http://")
            lines += [f"  metrics: {page}/metrics"]
        for name in self._pools:
            lines += [f"  pool {name}: asyncpool recycle {name}-{os.getpid()}"]
        if operation.control_path is not None:
            lines.append(f"  asyncpool status | reload | stop {operation.which}")
        lines.append("  Ctrl-C drains and ends, a second one ends at once")
        extra = {
            "target": self._asked.target,
            "addresses": ", ".join(addresses),
            "seconds": round(time.monotonic() - self._began, 3),
        }
        self.log.tell(say.SERVING, extra, lines="\n".join(lines))

    def _crashed(self, crash: Crash) -> None:
        """End at once if the code cannot be loaded: to try again would not help."""
        if self._up.is_set() or self._failures or not cannot_be_loaded(crash):
            return
        self._failures.append(crash)
        self._operation.stop()
        self._operation.stop()

    def _explain(self, crash: Crash) -> None:
        """Say why the code cannot be loaded, and what to do about it."""
        target = self._asked.target
        detail = crash.detail.removeprefix("serve failed: ")
        module = target.partition(":")[0]
        own = {f"'{module}'", f"'{module.partition('.')[0]}'"}
        named = any(name in detail for name in own)
        hint = ""
        if detail.startswith("ModuleNotFoundError: ") and named:
            hint = (
                "\n  Modules are found in the current folder, in PYTHONPATH, in what is "
                "installed.\n  Is this the folder that you meant, and the environment?"
            )
        elif detail.startswith("AttributeError: module ") and named:
            hint = f"\n  What is it called in {module}?  Write {module}:NAME."
        elif traceback := users_own(crash.stack):
            hint = f"\n{traceback}"
        extra = {"target": target, "reason": detail}
        self.log.tell(say.NOT_LOADED, extra, lines=hint)


async def _metrics_page(address: str) -> MetricsPage:
    from asyncpool.prometheus._page import MetricsPage  # noqa: PLC0415 - an extra

    if address.isdigit():
        address = f"127.0.0.1:{address}"
    try:
        async with addresses_locked([address]):
            return MetricsPage(address)
    except OSError as error:
        raise OSError(error.errno, f"--metrics: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"--metrics: {error}") from None
