"""``asyncpool map``: a function over all items of an input."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from asyncpool._cli.call import LIMITS, Interrupted, lines_shown
from asyncpool._cli.map.inputs import InputError
from asyncpool._cli.map.journal import FAILURE, JournalError, is_foreign
from asyncpool._cli.map.run import RETRY_ON, Asked, Run, Tally
from asyncpool._cli.parameters import (
    CommandError,
    Exit,
    JsonCommand,
    UnfinishedError,
    duration,
    error_console,
    options_of,
    say,
    size_text,
)
from asyncpool._cli.targets import TargetError
from asyncpool._core.options import MAX_WORKERS
from asyncpool._observe.traces import HEAD
from asyncpool._wire.page import MAX_LANES
from asyncpool._wire.posix import memory_at_most
from asyncpool.errors import PoolBrokenError
from asyncpool.stats import PoolStats

_INTERRUPTED = "interrupted"

# Seconds between two looks at the progress, and of the past that the rate is about.
_EVERY = 0.2
_RATE_OVER = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run has ended, or why there was none: the summary.

    Attributes:
        code: The exit code.
        problem: Why it did not go on to its end.
        tally: How far it came.
        stats: The pool's figures, if there was one.
        seconds: How long it took.
        output: Where its results are.
        failures: Where its failures are, if there are any.
    """

    code: int
    problem: str
    tally: Tally = field(default_factory=Tally)
    stats: PoolStats | None = None
    seconds: float = 0.0
    output: str | None = None
    failures: str | None = None

    def as_json(self) -> str:
        """Return the summary for machines."""
        tally, stats, seconds = self.tally, self.stats, self.seconds
        fresh = tally.done - tally.found
        summary = {
            "exit_code": int(self.code),
            "problem": self.problem,
            "done": tally.done,
            "failed": tally.failed,
            "from_journal": tally.found,
            "seconds": round(seconds, 3),
            "per_second": round(fresh / seconds, 1) if seconds else 0.0,
            "restarts": stats.restarts if stats else 0,
            "crashes": stats.crashes if stats else 0,
            "output": self.output,
            "failures": self.failures,
        }
        return json.dumps(summary)

    def lines(self, journal: str | None) -> Iterator[str]:
        """Tell it to people; *journal* is what has it, if there is one."""
        tally, is_mistake = self.tally, self.code == Exit.USAGE
        if self.code == Exit.BROKEN_PIPE:
            return
        if self.problem:
            yield f"asyncpool: {self.problem}"
        if is_mistake and tally.done == tally.found:
            return
        # What could not be written any more does not count.
        done = tally.written if self.code == Exit.UNFINISHED else tally.done
        fresh = done - tally.found
        text = f"{done:,} done in {duration(self.seconds)}"
        if fresh > 0 and self.seconds:
            text += f", {fresh / self.seconds:,.0f}/s"
        if tally.failed:
            text += f"; {tally.failed:,} failed, see {self.failures}"
        if self.stats and (restarts := self.stats.restarts):
            were = "worker was" if restarts == 1 else "workers were"
            text += f"; {restarts} {were} replaced"
        yield text
        if not self.problem or is_mistake:
            return  # with a mistake it would not go on
        if journal is None:
            yield "with --journal FILE the next run could go on here"
        else:
            # What retries once more is not what goes on.
            words = [word for word in sys.argv[1:] if word != "--retry-failed"]
            yield "nothing is lost; this goes on:"
            yield f"    {shlex.join(['asyncpool', *words])}"


def _tell(problem: str, code: int) -> None:
    """Report a mistake in the command as a run that has done nothing."""
    say(Ended(code, problem).as_json())


@click.command(
    "map",
    cls=JsonCommand,
    tell=_tell,
    short_help="Call a function for each line of a file.",
)
@click.argument("target", metavar="MODULE:FUNCTION")
@click.argument("input", required=False, type=click.Path())
@options_of(
    Asked,
    pattern={"flags": ["--glob"], "metavar": "PATTERN"},
    output={"flags": ["-o", "--output"], "type": click.Path()},
    failed={"type": click.Path()},
    workers={"flags": ["-w", "--workers"], "type": click.IntRange(1, MAX_WORKERS)},
    concurrency={"type": click.IntRange(1, MAX_LANES)},
    max_attempts={"type": click.IntRange(min=1)},
    retry_on={"type": click.Choice(list(RETRY_ON))},
    journal={"type": click.Path(dir_okay=False)},
    trace={"type": click.Path(dir_okay=False)},
    as_json={"flags": ["--json"]},
    **LIMITS,
)
def map_command(**asked: Any) -> None:
    """Call a function for each item of INPUT, in supervised workers.

    INPUT holds JSON lines (the function gets the value), CSV (it gets the columns as
    keywords) or plain lines (it gets the text); - is stdin.  A crash, a hang or an
    exception costs one item, which goes to failed.jsonl.

    \b
    asyncpool map mypkg.mod:fn inputs.jsonl -o results.jsonl --journal run.db
    asyncpool map mypkg.mod:fn --glob '**/*.png' --timeout 30 --max-attempts 3
    zcat lines.gz | asyncpool map mypkg.mod:fn - --bare | sort

    Ctrl-C lets running items finish for five seconds; a second one ends at once.
    """  # noqa: D301 - \b is click's
    sys.exit(_run(Asked(**asked)))


def _run(asked: Asked) -> int:
    if (asked.input is None) == (asked.pattern is None):
        raise click.UsageError("Give either INPUT or --glob PATTERN.")
    if asked.pattern is not None and asked.format is not None:
        raise click.UsageError("--format is about INPUT, and --glob has paths only.")
    if asked.retry_failed and asked.journal is None:
        raise click.UsageError("--retry-failed needs the --journal of the run.")
    _check_paths(asked)
    with ExitStack() as stack:
        try:
            run = Run(asked, stack)
        except (InputError, JournalError) as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            text = f"cannot write {error.filename}: {error.strerror}"
            raise UnfinishedError(text) from None
        except KeyboardInterrupt:
            return _say_end(asked, Ended(Exit.INTERRUPTED, _INTERRUPTED))
        done, failed = run.known
        if done and not asked.as_json:
            say(
                f"{asked.journal} has {done:,} items already, {failed:,} of them failed"
            )
        began = time.monotonic()
        code, problem = _carry_out(asked, run)
        ended = Ended(
            code,
            problem,
            run.tally,
            run.stats(),
            time.monotonic() - began,
            output=asked.output,
            failures=asked.failures if run.tally.failed else None,
        )
        return _say_end(asked, ended)


def _say_end(asked: Asked, ended: Ended) -> int:
    """Print the summary; return the exit code."""
    if asked.as_json:
        say(ended.as_json())
    else:
        for line in ended.lines(asked.journal):
            say(line)
    return ended.code


def _check_paths(asked: Asked) -> None:
    """Refuse paths that are no files, and outputs that are the input or each other."""
    if asked.output == "-" and sys.stdout is None:
        raise click.UsageError("stdout is closed: name a file by --output.")
    roles = {
        "INPUT": asked.input,
        "--output": asked.output,
        "--failed": asked.failures,
        "--journal": asked.journal,
        "--trace": asked.trace,
    }
    seen: dict[Path, str] = {}
    for role, path in roles.items():
        if path == "":
            raise click.UsageError(f"{role} is empty: name a file.")
        if path is None or path == "-" or (place := Path(path)).is_char_device():
            continue
        if role != "INPUT" and place.is_dir():
            raise click.UsageError(f"{role} is a folder, not a file: {path}")
        place = place.resolve()
        if role != "INPUT" and not place.parent.is_dir():
            raise click.UsageError(f"There is no folder {place.parent} for {role}.")
        if place in seen:
            raise click.UsageError(
                f"{role} and {seen[place]} are the same file: {path}"
            )
        seen[place] = role
    # A run without failures removes their file.
    for role, path, begin, what in (
        ("--failed", asked.failures, FAILURE, "file of failures"),
        ("--trace", asked.trace, HEAD.encode(), "trace"),
    ):
        if path is not None and is_foreign(path, begin):
            raise click.UsageError(
                f"{path} is no {what}, and this run would write over it: name another one "
                f"by {role}, or move it away."
            )


def _carry_out(asked: Asked, run: Run) -> tuple[int, str]:
    """Carry the run out; return the exit code, and the problem if it did not end well."""
    console = error_console()
    try:
        with lines_shown(console):
            asyncio.run(_execute(asked, run, console))
    except (Interrupted, KeyboardInterrupt) as error:
        # The latter comes before the run hears of signals.
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        return 128 + number, _INTERRUPTED
    except (TargetError, InputError, JournalError) as error:
        return Exit.USAGE, str(error)
    except PoolBrokenError as error:
        return Exit.UNFINISHED, str(error)
    except BrokenPipeError:
        return Exit.BROKEN_PIPE, "nobody reads stdout any more"
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        return Exit.UNFINISHED, f"cannot write{where}: {error.strerror or error}"
    return (Exit.FAILED if run.tally.failed else Exit.OK), ""


async def _execute(asked: Asked, run: Run, console: Console) -> None:
    """Carry the run out, and show its progress if somebody can see it."""

    def announce(seconds: float) -> None:
        text = f"ending: running items have {seconds:g} s, Ctrl-C again ends at once"
        with suppress(OSError):  # the terminal may be gone
            console.print(text)

    if not asked.as_json:
        run.on_interrupt = announce
    # Results at a terminal are there to be seen.
    covered = asked.output == "-" and sys.stdout.isatty()
    shown = None
    if console.is_terminal and not asked.as_json and not covered:
        progress = _show_progress(run, asked.target, console)
        shown = asyncio.create_task(progress, name="asyncpool map: progress")
    try:
        await run.execute()
    finally:
        if shown is not None:
            shown.cancel()
            await asyncio.wait({shown})


async def _show_progress(run: Run, title: str, console: Console) -> None:
    """Show how far a run is in a live line that begins with *title*; the last state stays.

    Cancellation:
        Ends it.
    """
    began, past = time.monotonic(), deque[tuple[float, int]]()
    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(20),
        TextColumn("{task.fields[text]}"),
        console=console,
        auto_refresh=False,
    )
    task = bar.add_task(escape(title), text="")

    def update() -> None:
        tally, stats, now = run.tally, run.stats(), time.monotonic()
        # Without those of the journal.
        past.append((now, tally.done - tally.found))
        while now - past[0][0] > _RATE_OVER:
            past.popleft()
        (then, before), (_, done) = past[0], past[-1]
        rate = (done - before) / (now - then) if now > then else 0.0
        total, about = _total(run)
        count, left = f"{tally.done:,}", duration(now - began)
        if total is not None:
            count += f"/{about}{total:,}"
            if rate > 0 and total > tally.done:
                left = f"ETA {duration((total - tally.done) / rate)}"
        pids = [os.getpid(), *(it.pid for it in stats.slots if it.pid is not None)]
        failed = "red" if tally.failed else "dim"
        restarts = "yellow" if stats.restarts else "dim"
        text = (
            f"{count}  [cyan]{rate:,.0f}/s[/]  {left}  [{failed}]{tally.failed:,} failed[/]  "
            f"[{restarts}]{stats.restarts} restarts[/]  "
            f"[dim]{size_text(sum(map(memory_at_most, pids)))}[/]"
        )
        bar.update(task, total=total, completed=tally.done, text=text, refresh=True)

    with bar:
        try:
            while True:
                update()
                await asyncio.sleep(_EVERY)
        finally:
            update()


def _total(run: Run) -> tuple[int | None, str]:
    """Return how many items there are, as far as that can be told, and ``~`` if about."""
    tally, source = run.tally, run.source
    if tally.at_end:
        return tally.drawn, ""
    if source.count is not None:
        return source.count, ""
    if not source.size or not tally.consumed:
        return None, ""
    # As if the rest of the file were like what was read of it.
    return max(tally.drawn, round(tally.drawn * source.size / tally.consumed)), "~"
