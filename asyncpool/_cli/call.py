"""``asyncpool call``: one supervised call; and what ``asyncpool map`` has in common with it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import click
from rich.console import Console
from rich.text import Text

from asyncpool._cli.parameters import (
    CommandError,
    Exit,
    JsonCommand,
    error_console,
    options_of,
    say,
    size,
)
from asyncpool._cli.targets import (
    FunctionRaisedError,
    TargetError,
    Work,
    call_once,
    load,
    trouble,
)
from asyncpool._core.options import WorkerLimits
from asyncpool._engine.life_log import LOGGER
from asyncpool._engine.machine import check_loop_kind
from asyncpool._wire.text import function_name, printable_block
from asyncpool.errors import (
    AsyncPoolError,
    JobTimeoutError,
    PoolBrokenError,
    WorkerCrashedError,
)
from asyncpool.pool import Pool

_START = 300.0  # s that a worker may import what the function needs


def _loop(_: click.Context, __: click.Parameter, kind: str) -> str:
    """Check that there is such an event loop; the callback of an option."""
    try:
        check_loop_kind("worker_loop", kind)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return kind


# What is not as usual about the options of each Limits.
LIMITS: dict[str, dict[str, Any]] = {
    "loop": {"callback": _loop},
    "kill_memory": {"type": size, "metavar": "SIZE"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a call may use.

    Attributes:
        loop: The event loop that an async function runs in.
        timeout: How long one attempt may take.  What takes longer is made to end, and where it was
            is shown.
        kill_memory: Kill a worker that has more memory to itself, such as 512M or 2G; what it ran
            fails (Linux).
    """

    loop: Literal["asyncio", "uvloop"] = "asyncio"
    timeout: float | None = None
    kill_memory: int | None = None

    def make_pool(self, work: Work, workers: int | None, **more: Any) -> Pool:
        """Return the pool for some work, which is not started.

        Args:
            work: The work.
            workers: How many workers.
            **more: Other options of the pool.
        """
        only_async = "--loop" if self.loop != "asyncio" else ""
        if more.get("concurrency", 1) > 1:
            only_async = "--concurrency"
        return Pool(
            workers,
            name="map",
            initializer=load,
            initargs=(work, only_async),
            worker_limits=WorkerLimits(kill_memory=self.kill_memory),
            start_timeout=_START,
            worker_loop=self.loop,
            **more,
        )


def _tell(problem: str, _: int = Exit.USAGE) -> None:
    """Report a mistake in the command as a call that has failed."""
    _print_error({"kind": "failed", "type": "UsageError", "message": problem}, 0.0)


@click.command("call", cls=JsonCommand, tell=_tell, short_help="Call a function once.")
@click.argument("target", metavar="MODULE:FUNCTION")
@click.argument("args", nargs=-1, metavar="[ARGS]...")
@options_of(Limits, **LIMITS)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print result or error, and the seconds, as one JSON object.",
)
def call_command(
    *, target: str, args: tuple[str, ...], as_json: bool, **limits: Any
) -> None:
    """Call a function once, in a supervised worker, and print what it returns.

    Each of ARGS is taken as JSON if it is (3, true, '[1, 2]', '"3"'), and as text if it
    is not; name=value is a keyword.  If the function hangs longer than --timeout, or
    crashes, the stack is printed that it was stuck in.

    \b
    asyncpool call math:factorial 20
    asyncpool call mypkg.mod:fn photo.png width=320 --timeout 10 --kill-memory 1G
    """  # noqa: D301 - \b is click's
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for word in args:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            keywords[name] = _value(value)
        else:
            positional.append(_value(word))

    async def call() -> str:
        asked = Limits(**limits)
        async with asked.make_pool(Work(target), 1) as pool:
            await check_target(pool)
            view = pool.options(timeout=asked.timeout, cancel_grace=1.0)
            return await view.submit(call_once, tuple(positional), keywords)

    began = time.monotonic()
    try:
        with lines_shown(error_console()):
            result = asyncio.run(_interruptible(call))
    except Interrupted as ended:
        if as_json:
            name = signal.Signals(ended.number).name
            _print_error(
                {"kind": "interrupted", "type": name, "message": f"ended by {name}"},
                time.monotonic() - began,
            )
        sys.exit(128 + ended.number)
    except (TargetError, FunctionRaisedError, AsyncPoolError) as error:
        # What the pool has run is a function of this command, which calls theirs.
        text = str(error).replace(function_name(call_once), target)
        if as_json:
            known = describe(error)
            if not isinstance(error, FunctionRaisedError):
                known["message"] = text
            _print_error(known, time.monotonic() - began)
        elif isinstance(error, TargetError):
            raise CommandError(text) from None
        else:
            _show(error, text)
        sys.exit(_exit_code(error))
    if as_json:
        click.echo(f'{{"result": {result}, "seconds": {time.monotonic() - began:.3f}}}')
    elif isinstance(returned := json.loads(result), str):
        click.echo(printable_block(returned) if sys.stdout.isatty() else returned)
    elif returned is not None:
        click.echo(result)


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word
    except RecursionError:
        raise CommandError(f"an argument is nested too deeply: {word[:20]}…") from None


async def _interruptible(call: Callable[[], Coroutine[Any, Any, str]]) -> str:
    """Return what a call returns, unless a signal ends it."""
    task = asyncio.create_task(call(), name="asyncpool call")
    ended: list[int] = []

    def end(number: int) -> None:
        ended.append(number)
        task.cancel()

    for number in interrupts():
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        raise Interrupted(ended[0] if ended else signal.SIGINT) from None


def _exit_code(error: Exception) -> Exit:
    if isinstance(error, TargetError):
        return Exit.USAGE
    if isinstance(error, PoolBrokenError):
        return Exit.UNFINISHED
    return Exit.TIMEOUT if isinstance(error, JobTimeoutError) else Exit.FAILED


def _print_error(error: dict[str, Any], seconds: float) -> None:
    click.echo(json.dumps({"error": error, "seconds": round(seconds, 3)}))


def _show(error: Exception, text: str) -> None:
    """Tell people of a call that has failed."""
    if isinstance(error, FunctionRaisedError):
        say(error.traceback.rstrip() or f"asyncpool: {error.message}")
    elif isinstance(error, PoolBrokenError):
        say(f"asyncpool: {text}")  # with all that is known of the crashes
    else:
        say(f"asyncpool: {text.splitlines()[0]}")
        if isinstance(error, JobTimeoutError | WorkerCrashedError):
            tail = getattr(error, "stderr_tail", ())
            say(error.stack.rstrip() or "\n".join(tail))


# What the two commands have in common.


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The run was asked to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def interrupts() -> list[signal.Signals]:
    """Return the signals that end a run; nohup and shells have some of them ignored."""
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [n for n in asked if signal.getsignal(n) is not signal.SIG_IGN]


async def check_target(pool: Pool) -> None:
    """Check that the workers of a pool have found the function.

    Raises:
        TargetError: If they cannot use it.
    """
    if text := await pool.submit(trouble):
        raise TargetError(text)


def describe(error: BaseException) -> dict[str, Any]:
    """Return what is known of a failure, for JSON.

    ``kind`` is ``"raised"``, ``"timeout"``, a kind of crash, or ``"failed"``.
    """
    if isinstance(error, FunctionRaisedError):
        return {"kind": "raised", **vars(error)}
    known: dict[str, Any] = {
        "kind": "failed",
        "type": type(error).__name__,
        "message": str(error),
    }
    if isinstance(error, JobTimeoutError):
        known |= {"kind": "timeout", "attempt": error.attempt, "stack": error.stack}
    elif isinstance(error, WorkerCrashedError):
        crashes = [dataclasses.asdict(crash) for crash in error.crashes]
        known |= {"kind": error.kind, "attempt": error.attempt}
        known |= {"stack": error.stack, "crashes": crashes}
    return known


class _Lines(logging.Handler):
    """Prints what workers print, and what is logged, above a live line."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        text = Text(printable_block(self.format(record)))
        with suppress(OSError):  # nobody may read it
            self._console.print(text, soft_wrap=True, highlight=False)


@contextmanager
def lines_shown(console: Console) -> Generator[None]:
    """Print what workers print, and what is logged, while the context lasts."""
    handler = _Lines(console)
    root, lines = logging.getLogger(), logging.getLogger("asyncpool.worker")
    before = LOGGER.disabled, lines.level
    root.addHandler(handler)
    LOGGER.disabled = True  # the deaths of workers are in the files, and in the errors
    lines.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(handler)
        LOGGER.disabled, level = before
        lines.setLevel(level)
