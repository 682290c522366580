"""``asyncpool agent``: a pool for the programs of this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import click

from asyncpool._cli.logs import CommandLog, LogOptions
from asyncpool._cli.parameters import CommandError, Exit, RefusedError, options_of
from asyncpool._cli.shared_pools import make_pool
from asyncpool._core import log_messages as say
from asyncpool._core.options import MAX_WORKERS
from asyncpool._engine.life_log import LOGGER
from asyncpool._engine.machine import raise_descriptor_limit
from asyncpool._observe.control.socket_files import clear_path, folders_locked
from asyncpool.errors import PoolBrokenError, PoolClosedError, RollInProgressError
from asyncpool.pool import Pool
from asyncpool.sharedpool import PoolServer

_UNIX = "unix:"


@click.command("agent", short_help="Let the programs of this machine share a pool.")
@click.option(
    "-b",
    "--bind",
    required=True,
    metavar="ADDRESS",
    help="Where programs find it, such as unix:/run/user/1000/models.sock; for processes of "
    "this user.",
)
@click.option(
    "--pool",
    "target",
    metavar="MODULE:FUNCTION",
    help="A function that returns the asyncpool.Pool, with all its options; it starts in "
    "this process.",
)
@options_of(
    Pool,
    "workers",
    "preload",
    workers={
        "flags": ["-w", "--workers"],
        "type": click.IntRange(1, MAX_WORKERS),
        "help": "How many workers, if there is no --pool; by default one for each usable CPU.",
    },
    preload={
        "help": "Import a module once, before workers are forked, if there is no --pool.  "
        "Several may be given."
    },
)
@options_of(PoolServer)
@options_of(LogOptions)
def agent_command(
    *,
    bind: str,
    target: str | None,
    workers: int | None,
    preload: tuple[str, ...],
    max_clients: int,
    log_level: str,
    log_format: str,
) -> None:
    """Let the programs of this user on this machine share a pool.

    A program uses it with asyncpool.connect("unix:PATH").  Each has its own queue and its own
    attempts, and one that floods the pool does not hold up the others.

    \b
    asyncpool agent --bind unix:/run/user/1000/models.sock --workers 2 --preload models
    asyncpool agent --bind unix:./jobs.sock --pool app:make_pool

    \b
    Signals:
      TERM, INT   finish the jobs that are here and end; again: end at once
      HUP         replace all workers by fresh ones

    \b
    Exit codes:
      0        it was stopped, and has finished the jobs
      1        it could not listen
      2        a mistake in the command
      3        no worker can be kept alive
      130, 143 it was interrupted twice
    """  # noqa: D301 - \b is click's
    path = bind.removeprefix(_UNIX)
    if path in {"", bind}:
        raise CommandError(f"--bind: {bind!r} is not unix:PATH")
    if target is not None and (workers or preload):
        raise CommandError("--pool makes the pool: --workers and --preload go there")
    if target is None:
        control = f"agent-{os.getpid()}"
        pool = Pool(workers, preload=preload, name="agent", control=control)
    else:
        pool = make_pool(target, "agent")
    try:
        server = PoolServer(pool, path, max_clients=max_clients)
    except ValueError as error:
        raise CommandError(str(error)) from None
    raise_descriptor_limit()
    log = CommandLog(json=log_format == "json")
    try:
        with log.on(getattr(logging, log_level.upper())):
            sys.exit(asyncio.run(_share(pool, server, bind, log)))
    except OSError as error:
        raise RefusedError(f"{bind}: {error.strerror or error}") from None


async def _share(pool: Pool, server: PoolServer, address: str, log: CommandLog) -> int:
    """Share a pool until a signal ends it; return the exit code."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    asked: list[int] = []
    stopped = asyncio.Event()
    rolls: set[asyncio.Task[None]] = set()

    def stop(number: int) -> None:
        asked.append(number)
        stopped.set()
        if len(asked) > 1:
            task.cancel()

    async def roll() -> None:
        try:
            await pool.roll()  # which logs how it goes
        except (PoolClosedError, PoolBrokenError, RollInProgressError) as error:
            say.AGENT_ROLL_REFUSED.log(LOGGER, {"reason": str(error)})

    def begin_roll() -> None:
        rolling = asyncio.create_task(roll(), name="asyncpool agent: roll")
        rolls.add(rolling)
        rolling.add_done_callback(rolls.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, begin_roll)
    path = address.removeprefix(_UNIX)
    try:
        # Before the pool, which may take a while to start.
        async with folders_locked([path]):
            clear_path(path)
        async with pool:
            async with server:
                where = {"pool": pool.name, "address": address}
                log.tell(say.AGENT_SHARING, where, title=f"pool {pool.name}")
                await stopped.wait()
                before = pool.stats().completed
                say.AGENT_STOPPING.log(LOGGER, {"by": signal.Signals(asked[0]).name})
            # The record of the pool's end counts what it finishes from here on: nothing.
            finished = pool.stats().completed - before
            say.AGENT_DRAINED.log(LOGGER, {"pool": pool.name, "finished": finished})
    except PoolBrokenError as error:
        log.tell(say.AGENT_GAVE_UP, {"reason": str(error)})
        return Exit.UNFINISHED
    except asyncio.CancelledError:
        if len(asked) > 1:
            return 128 + asked[-1]
        raise
    return 0
