"""``asyncpool agent``: a pool for the programs of this machine."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from functools import partial

import click

from asyncpool._cli.logs.command_log import CommandLog
from asyncpool._cli.logs.log_options import log_format, log_level
from asyncpool._cli.parameters import CommandError, Exit, RefusedError
from asyncpool._cli.shared_pools import give_control, make_pool
from asyncpool._core import log_messages as say
from asyncpool._core.options import MAX_WORKERS
from asyncpool._engine.machine import raise_descriptor_limit
from asyncpool._observe.control.socket_files import clear_path, folders_locked
from asyncpool._remote.agent import MOST_CLIENTS
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
@click.option(
    "-w",
    "--workers",
    type=click.IntRange(1, MAX_WORKERS),
    help="How many workers, if there is no --pool; by default one for each usable CPU.",
)
@click.option(
    "--preload",
    multiple=True,
    metavar="MODULE",
    help="Import a module once, before workers are forked, if there is no --pool.  Several may "
    "be given.",
)
@click.option(
    "--max-clients",
    type=click.IntRange(min=1),
    default=MOST_CLIENTS,
    show_default=True,
    metavar="NUMBER",
    help="How many programs there may be at a time.",
)
@log_level
@log_format
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
    if not bind.startswith(_UNIX) or bind == _UNIX:
        raise CommandError(f"--bind: {bind!r} is not unix:PATH")
    if target is not None and (workers or preload):
        raise CommandError("--pool makes the pool: --workers and --preload go there")
    pool = (
        Pool(workers, preload=preload, name="agent")
        if target is None
        else make_pool(target)
    )
    give_control(pool, "agent")
    path = bind.removeprefix(_UNIX)
    sharing = PoolServer(pool, path, max_clients=max_clients)
    raise_descriptor_limit()
    log = CommandLog(json=log_format == "json")
    try:
        with log.on(getattr(logging, log_level.upper())):
            sys.exit(asyncio.run(_Sharing(pool, sharing, bind, log).run()))
    except OSError as error:
        raise RefusedError(f"{bind}: {error.strerror or error}") from None


class _Sharing:
    """One run of the command.

    Args:
        pool: The pool, which is started here.
        server: Lets clients use it.
        address: Where it is, for people.
        log: Where it says what it does.
    """

    def __init__(
        self, pool: Pool, server: PoolServer, address: str, log: CommandLog
    ) -> None:
        self._path = address.removeprefix(_UNIX)
        self._pool = pool
        self._server = server
        self._address = address
        self._log = log
        self._asked: list[int] = []
        self._stopped = asyncio.Event()
        self._rolls: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Share the pool until a signal ends it; return the exit code."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, partial(self._stop, number, task))
        loop.add_signal_handler(signal.SIGHUP, self._roll)
        try:
            # Before the pool, which may take a while to start.
            async with folders_locked([self._path]):
                clear_path(self._path)
            async with self._pool, self._server:
                self._log.tell(
                    say.AGENT_SHARING,
                    {"pool": self._pool.name, "address": self._address},
                    title=f"pool {self._pool.name}",
                )
                await self._stopped.wait()
                by = signal.Signals(self._asked[0]).name
                self._log.tell(say.AGENT_STOPPING, {"by": by})
        except PoolBrokenError as error:
            self._log.tell(say.AGENT_GAVE_UP, {"reason": str(error)})
            return Exit.UNFINISHED
        except asyncio.CancelledError:
            if len(self._asked) > 1:
                return 128 + self._asked[-1]
            raise
        return 0

    def _stop(self, number: int, task: asyncio.Task[object]) -> None:
        self._asked.append(number)
        self._stopped.set()
        if len(self._asked) > 1:
            task.cancel()

    def _roll(self) -> None:
        task = asyncio.create_task(self._roll_all(), name="asyncpool agent: roll")
        self._rolls.add(task)
        task.add_done_callback(self._rolls.discard)

    async def _roll_all(self) -> None:
        try:
            await self._pool.roll()  # which logs how it goes
        except (PoolClosedError, PoolBrokenError, RollInProgressError) as error:
            self._log.tell(say.AGENT_ROLL_REFUSED, {"reason": str(error)})
