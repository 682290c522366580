"""``asyncpool serve``: a server, in worker processes that share its port."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from asyncpool._cli.logs.command_log import CommandLog
from asyncpool._cli.logs.log_options import log_format, log_level
from asyncpool._cli.parameters import (
    CommandError,
    Exit,
    RefusedError,
    seconds,
    seconds_or_never,
    size,
)
from asyncpool._cli.serve.server_options import read_options, server_options
from asyncpool._cli.serve.serving import Serving, ServingPlan
from asyncpool._cli.shared_pools import named_pools
from asyncpool._cluster.first_process import look_after_orphans
from asyncpool._core.options import MAX_WORKERS, RestartPolicy, WorkerLimits
from asyncpool._engine.machine import DEFAULT_LAUNCHER, raise_descriptor_limit
from asyncpool._wire.text import NAMES, is_name
from asyncpool.errors import AsyncPoolError

F = TypeVar("F", bound=Callable[..., Any])

_BIND = "127.0.0.1:8000"

# Seconds within which --max-restarts counts, if --within does not say.
_WITHIN = 60.0

# Those of uvicorn that are options of the command, by uvicorn's names.
_OF_UVICORN = (
    "ssl_certfile",
    "ssl_keyfile",
    "root_path",
    "env_file",
    "factory",
    "forwarded_allow_ips",
    "limit_concurrency",
)

# What listen() takes; the kernel has a limit of its own, below that.
_MAX_BACKLOG = (1 << 31) - 1


# In the order in which --help shows them.
_TIMES = (
    click.option(
        "--start-timeout",
        type=seconds,
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a worker may take until it is ready.",
    ),
    click.option(
        "--ping-timeout",
        type=seconds_or_never,
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a worker, or its event loop, may hang before it is killed; "
        "0 for any time.",
    ),
    click.option(
        "--drain-timeout",
        type=seconds,
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="How long workers may take to finish their connections when the server "
        "ends.",
    ),
    click.option(
        "--reload-drain-timeout",
        type=seconds,
        metavar="SECONDS",
        help="How long a worker that is replaced may take for it, while others serve; by "
        "default as long.",
    ),
)

_RESTARTS = (
    click.option(
        "--max-restarts",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="Give up, with exit code 3, after more restarts than that within "
        "--within; by default a server never gives up.",
    ),
    click.option(
        "--within",
        type=seconds,
        metavar="SECONDS",
        help="For --max-restarts; 60 by default.",
    ),
)

_LIMITS = (
    click.option(
        "--max-connections",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="Replace a worker after so many connections, or somewhat fewer.",
    ),
    click.option(
        "--max-age",
        type=seconds,
        metavar="SECONDS",
        help="Replace a worker that is older; each a little earlier or later.",
    ),
    click.option(
        "--max-memory",
        type=size,
        metavar="SIZE",
        help="Replace a worker that has more memory to itself, such as 512M or 2G: it "
        "drains when its successor is ready (Linux).",
    ),
    click.option(
        "--kill-memory",
        type=size,
        metavar="SIZE",
        help="Kill a worker that has more memory to itself, and cut its connections off "
        "(Linux).",
    ),
    click.option(
        "--nice",
        type=click.IntRange(-20, 19),
        default=0,
        show_default=True,
        metavar="NUMBER",
        help="What is added to the niceness of workers.",
    ),
)

_REPLACEMENTS = (
    click.option(
        "--max-surge",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="NUMBER",
        help="How many workers are replaced at a time: so many more there may be.",
    ),
    click.option(
        "--launcher",
        type=click.Choice(["forkserver", "spawn"]),
        default=DEFAULT_LAUNCHER,
        show_default=True,
        help="How workers are started: forked from a process that has what they need, "
        "or each as a Python of its own.",
    ),
    click.option(
        "--preload",
        multiple=True,
        metavar="MODULE",
        help="Import a module once, before workers are forked: they start faster and "
        "share its memory.  A reload does not load it anew.  Several may be given.",
    ),
)


def _life_options(function: F) -> F:
    """Add the options that say how long workers live, and how they begin and end."""
    # The decorator that is applied last is shown first.
    for option in reversed((*_TIMES, *_RESTARTS, *_LIMITS, *_REPLACEMENTS)):
        function = option(function)
    return function


@click.command("serve", short_help="Serve an application with several workers.")
@click.argument("target", metavar="MODULE:NAME")
@click.option(
    "-b",
    "--bind",
    multiple=True,
    default=(_BIND,),
    show_default=True,
    metavar="ADDRESS",
    help="Where to listen: HOST:PORT, [::1]:PORT, :PORT for all interfaces, "
    "unix:///run/app.sock (with ?mode=660), fd://3 for an inherited socket, or systemd: for "
    "those of a .socket unit.  Port 0 is one that is free.  Several may be given.",
)
@click.option(
    "-w",
    "--workers",
    type=click.IntRange(1, MAX_WORKERS),
    help="How many workers; by default one for each usable CPU.",
)
@click.option(
    "--interface",
    type=click.Choice(["asgi", "wsgi", "serve"]),
    default="asgi",
    show_default=True,
    help="What MODULE:NAME is: an ASGI application, which uvicorn runs, a WSGI application, "
    "or an 'async def serve(worker)' of your own.",
)
@click.option(
    "--spread",
    type=click.Choice(["handoff", "shared"]),
    default="handoff",
    show_default=True,
    help="How connections get to workers: handed to the least busy one, or accepted by all.",
)
@click.option(
    "--loop",
    "worker_loop",
    type=click.Choice(["asyncio", "uvloop"]),
    default="asyncio",
    show_default=True,
    help="The event loop of workers.",
)
@_life_options
@server_options
@click.option(
    "--backlog",
    type=click.IntRange(1, _MAX_BACKLOG),
    default=2048,
    show_default=True,
    help="How many connections may wait in the kernel's queue.",
)
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another option of uvicorn.Config, such as ws_ping_interval=10 or "
    "server_header=false.  Several may be given.",
)
@click.option("--access-log", is_flag=True, help="Log every request.")
@log_level
@log_format
@click.option(
    "--name",
    metavar="NAME",
    help="What other commands call it; by default the module's name, with the pid if that is "
    "taken.  One that is given must be free.",
)
@click.option(
    "--control",
    metavar="PATH",
    help="Where the control socket is, if not among those of this user; '' for none.",
)
@click.option(
    "--metrics",
    metavar="ADDRESS",
    help="Show figures for Prometheus at http://ADDRESS/metrics: HOST:PORT, or a PORT of "
    "127.0.0.1; whoever can connect can read them.",
)
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="NAME=MODULE:FUNCTION",
    help="A pool that all workers share, as the function returns it; they find it by "
    "asyncpool.shared_pool(NAME).  It survives reloads.  Several may be given.",
)
@click.option(
    "--reload-on-change",
    is_flag=True,
    help="Reload when a Python file in the current folder changes (for development).",
)
def serve_command(
    target: str,
    bind: tuple[str, ...],
    interface: str,
    options: tuple[str, ...],
    access_log: bool,  # noqa: FBT001
    log_level: str,
    log_format: str,
    name: str | None,
    control: str | None,
    metrics: str | None,
    pools: tuple[str, ...],
    reload_on_change: bool,  # noqa: FBT001
    request_timeout: float | None,
    header_timeout: float,
    header_size: int,
    threads: int,
    ssl_keyfile_password_file: str | None,
    max_age: float | None,
    max_connections: int | None,
    max_memory: int | None,
    kill_memory: int | None,
    nice: int,
    max_restarts: int | None,
    within: float | None,
    **cluster: Any,
) -> None:
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
    module, colon, attribute = target.partition(":")
    if not (module and colon and attribute):
        raise CommandError(f"{target!r} is not MODULE:NAME, such as app:app")
    if "/" in module or module.endswith(".py"):
        name = module.removesuffix(".py").replace("/", ".").strip(".")
        raise CommandError(
            f"{module} is a file, and a module's name is wanted: {name}:{attribute}"
        )
    if name is not None and not is_name(name):
        raise CommandError(f"--name: {name!r} is no name, which is {NAMES}")
    if reload_on_change and cluster["preload"]:
        raise CommandError(
            "what is preloaded is not loaded anew: --reload-on-change or not"
        )
    given = {name: cluster.pop(name) for name in _OF_UVICORN}
    if interface == "serve":
        _refuse_options(options, given, access_log=access_log)
    _check_installed(
        interface, metrics=metrics is not None, reload_on_change=reload_on_change
    )
    server: dict[str, Any] = {}
    if interface != "serve":
        server = read_options(options, given, password_file=ssl_keyfile_password_file)
        server |= {"header_timeout": header_timeout, "header_size": header_size}
        server["request_timeout"] = request_timeout
        server["access_log"] = access_log
    if interface == "wsgi":
        server["threads"] = threads
    try:
        cluster["worker_limits"] = WorkerLimits(
            max_jobs=max_connections,
            max_age=max_age,
            max_memory=max_memory,
            kill_memory=kill_memory,
            nice=nice,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    cluster["restart_policy"] = _restart_policy(max_restarts, within)
    plan = ServingPlan(
        target=target,
        interface=interface,
        options=server,
        cluster={"bind": bind, **cluster},
        name=name or (module if is_name(module) else "server"),
        # A path, though a word without a slash could be a name as well.
        control=name if control is None else control and os.path.abspath(control),  # noqa: PTH100
        watch=reload_on_change,
        pools=named_pools(pools),
        metrics=f"127.0.0.1:{metrics}" if (metrics or "").isdigit() else metrics,
    )
    raise_descriptor_limit()
    show_title(f"master of {plan.name}")
    if os.getpid() == 1:
        look_after_orphans()
    sys.exit(_run(plan, level=log_level, log=CommandLog(json=log_format == "json")))


def _restart_policy(max_restarts: int | None, within: float | None) -> RestartPolicy:
    if max_restarts is not None:
        return RestartPolicy.limited(max_restarts, within or _WITHIN)
    if within is not None:
        raise CommandError(
            "--within says for how long --max-restarts counts: give both"
        )
    return RestartPolicy()


def _refuse_options(
    words: tuple[str, ...], given: dict[str, Any], *, access_log: bool
) -> None:
    flags = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    flags += ["--option"] * bool(words) + ["--access-log"] * access_log
    if flags:
        raise CommandError(
            f"{flags[0]} is for applications: with --interface serve it would change nothing"
        )


def _check_installed(interface: str, *, metrics: bool, reload_on_change: bool) -> None:
    needed = [("uvicorn", "cluster", f"--interface {interface}")] * (
        interface != "serve"
    )
    needed += [("prometheus_client", "prometheus", "--metrics")] * metrics
    needed += [("watchfiles", "reload", "--reload-on-change")] * reload_on_change
    for package, extra, what in needed:
        if importlib.util.find_spec(package) is None:
            raise CommandError(
                f"{what} needs {package}, which is not installed: "
                f"pip install 'asyncpool-supervised[{extra}]'"
            )


def _run(plan: ServingPlan, *, level: str, log: CommandLog) -> int:
    loop_factory = None
    if plan.cluster["worker_loop"] == "uvloop" and importlib.util.find_spec("uvloop"):
        import uvloop  # noqa: PLC0415 - an extra

        loop_factory = uvloop.new_event_loop
    try:
        with (
            log.on(getattr(logging, level.upper())),
            asyncio.Runner(loop_factory=loop_factory) as runner,
        ):
            return runner.run(Serving(plan, log).run())
    except KeyboardInterrupt:  # while there is no cluster to obey it
        return Exit.INTERRUPTED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise RefusedError(f"{where}{error.strerror or error}") from None
    except (ValueError, TypeError, AsyncPoolError) as error:
        raise CommandError(str(error)) from None


def show_title(title: str) -> None:
    """Have ``ps`` show a title, if the extra for that is installed."""
    with contextlib.suppress(Exception):
        importlib.import_module("setproctitle").setproctitle(f"asyncpool: {title}")
