"""``asyncpool call``: one supervised call."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from typing import Any

import click

from asyncpool._cli.finding import TargetError
from asyncpool._cli.map.outputs import describe
from asyncpool._cli.map.run import (
    Interrupted,
    Loop,
    Plan,
    interrupts,
    make_pool,
    options,
)
from asyncpool._cli.parameters import (
    CommandError,
    Exit,
    JsonCommand,
    error_console,
    pool_options,
    say,
)
from asyncpool._cli.targets import FunctionRaisedError, Work, call_once, trouble
from asyncpool._cli.worker_lines import WorkerLines
from asyncpool._wire.text import function_name, printable_block
from asyncpool.errors import (
    AsyncPoolError,
    JobTimeoutError,
    PoolBrokenError,
    WorkerCrashedError,
)


def _tell(problem: str, _: int) -> None:
    """Report a mistake in the command as a call that has failed."""
    error = {"kind": "failed", "type": "UsageError", "message": problem}
    _print_error(error, seconds=0.0)


@click.command("call", cls=JsonCommand, tell=_tell, short_help="Call a function once.")
@click.argument("target", metavar="MODULE:FUNCTION")
@click.argument("args", nargs=-1, metavar="[ARGS]...")
@pool_options
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print result or error, and the seconds, as one JSON object.",
)
def call_command(
    *,
    target: str,
    args: tuple[str, ...],
    loop: Loop,
    timeout: float | None,
    kill_memory: int | None,
    as_json: bool,
) -> None:
    """Call a function once, in a supervised worker, and print what it returns.

    Each of ARGS is taken as JSON if it is (3, true, '[1, 2]', '"3"'), and as text if it
    is not; name=value is a keyword.  If the function hangs longer than --timeout, or
    crashes, the stack is printed that it was stuck in.

    \b
    asyncpool call math:factorial 20
    asyncpool call mypkg.mod:fn photo.png width=320 --timeout 10 --kill-memory 1G
    """  # noqa: D301 - \b is click's
    positional, keywords = _arguments(args)
    plan = Plan(
        Work(target), workers=1, timeout=timeout, kill_memory=kill_memory, loop=loop
    )
    began = time.monotonic()
    try:
        with WorkerLines.on(error_console()):
            result = asyncio.run(_call(plan, positional, keywords))
    except TargetError as error:
        if not as_json:
            raise CommandError(str(error)) from None
        _show_failure(error, target, as_json=True, seconds=time.monotonic() - began)
        sys.exit(Exit.USAGE)
    except Interrupted as ended:
        if as_json:
            name = signal.Signals(ended.number).name
            _print_error(
                {"kind": "interrupted", "type": name, "message": f"ended by {name}"},
                seconds=time.monotonic() - began,
            )
        sys.exit(128 + ended.number)
    except (FunctionRaisedError, AsyncPoolError) as error:
        _show_failure(error, target, as_json=as_json, seconds=time.monotonic() - began)
        sys.exit(_exit_code(error))
    _show_result(result, as_json=as_json, seconds=time.monotonic() - began)


def _arguments(words: tuple[str, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            keywords[name] = _value(value)
        else:
            positional.append(_value(word))
    return tuple(positional), keywords


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word
    except RecursionError:
        raise CommandError(f"an argument is nested too deeply: {word[:20]}…") from None


async def _call(
    plan: Plan, positional: tuple[Any, ...], keywords: dict[str, Any]
) -> str:
    task = asyncio.create_task(
        _supervised(plan, positional, keywords), name="asyncpool call"
    )
    ended: list[int] = []

    def end(number: int) -> None:
        ended.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in interrupts():
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        raise Interrupted(ended[0] if ended else signal.SIGINT) from None


async def _supervised(
    plan: Plan, positional: tuple[Any, ...], keywords: dict[str, Any]
) -> str:
    async with make_pool(plan) as pool:
        if text := await pool.submit(trouble):
            raise TargetError(text)
        job = options(pool, plan).submit(call_once, positional, keywords)
        result: str = await job
        return result


def _show_result(result: str, *, as_json: bool, seconds: float) -> None:
    if as_json:
        click.echo(f'{{"result": {result}, "seconds": {seconds:.3f}}}')
        return
    value = json.loads(result)
    if isinstance(value, str):
        click.echo(printable_block(value) if sys.stdout.isatty() else value)
    elif value is not None:
        click.echo(result)


def _exit_code(error: FunctionRaisedError | AsyncPoolError) -> Exit:
    if isinstance(error, PoolBrokenError):
        return Exit.UNFINISHED
    return Exit.TIMEOUT if isinstance(error, JobTimeoutError) else Exit.FAILED


def _print_error(error: dict[str, Any], *, seconds: float) -> None:
    click.echo(json.dumps({"error": error, "seconds": round(seconds, 3)}))


def _show_failure(
    error: TargetError | FunctionRaisedError | AsyncPoolError,
    target: str,
    *,
    as_json: bool,
    seconds: float,
) -> None:
    # What the pool has run is a function of this command, which calls theirs.
    text = str(error).replace(function_name(call_once), target)
    if as_json:
        known = describe(error)
        if not isinstance(error, FunctionRaisedError):
            known["message"] = text
        _print_error(known, seconds=seconds)
    elif isinstance(error, FunctionRaisedError):
        say(error.traceback.rstrip() or f"asyncpool: {error.message}")
    elif isinstance(error, PoolBrokenError):
        say(f"asyncpool: {text}")  # with all that is known of the crashes
    else:
        say(f"asyncpool: {text.splitlines()[0]}")
        if isinstance(error, JobTimeoutError | WorkerCrashedError):
            tail = getattr(error, "stderr_tail", ())
            say(error.stack.rstrip() or "\n".join(tail))
