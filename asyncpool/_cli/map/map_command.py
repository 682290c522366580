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
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncpool._cli.finding import TargetError
from asyncpool._cli.journal.journal import START, Journal, Position, RunIdentity
from asyncpool._cli.journal.journal_file import JournalError
from asyncpool._cli.map.inputs import Format, Input, InputError, open_input
from asyncpool._cli.map.outputs import FAILURE, Outputs, is_foreign, usable
from asyncpool._cli.map.run import Files, Interrupted, Loop, Plan, Run, Tally, make_pool
from asyncpool._cli.parameters import (
    CommandError,
    Exit,
    JsonCommand,
    UnfinishedError,
    error_console,
    pool_options,
    say,
)
from asyncpool._cli.targets import FunctionRaisedError, Work
from asyncpool._cli.units import duration, size_text
from asyncpool._cli.worker_lines import WorkerLines
from asyncpool._observe.traces import HEAD
from asyncpool._wire.page import MAX_LANES
from asyncpool._wire.posix import memory_at_most
from asyncpool.errors import JobTimeoutError, PoolBrokenError
from asyncpool.stats import PoolStats

# The summary at the end of a run of ``asyncpool map``.


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run has ended, or why there was none.

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

    @property
    def per_second(self) -> float:
        """How many items it has done in a second."""
        fresh = self.tally.done - self.tally.found
        return fresh / self.seconds if self.seconds else 0.0

    def as_json(self) -> str:
        """Return the summary for machines."""
        stats = self.stats
        summary = {
            "exit_code": int(self.code),
            "problem": self.problem,
            "done": self.tally.done,
            "failed": self.tally.failed,
            "from_journal": self.tally.found,
            "seconds": round(self.seconds, 3),
            "per_second": round(self.per_second, 1),
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
            yield f"nothing is lost; this goes on:\n    {_same_command()}"


def _same_command() -> str:
    # What retries once more is not what goes on.
    words = [word for word in sys.argv[1:] if word != "--retry-failed"]
    return shlex.join(["asyncpool", *words])


# What a run shows of itself while it goes on: a live line, on a terminal only.

_EVERY = 0.2  # s
_RATE_OVER = 10.0  # s, of the newest past


class Progress:
    """Shows how far a run is.

    Args:
        run: The run.
        source: Its input.
        console: Where to.
        title: What the line begins with.
    """

    def __init__(self, run: Run, source: Input, console: Console, title: str) -> None:
        self._run = run
        self._source = source
        self._console = console
        self._title = title
        self._began = time.monotonic()
        self._past: deque[tuple[float, int]] = deque()

    async def show(self) -> None:
        """Show it until cancelled; the last state stays."""
        with Live(
            self.render(), console=self._console, auto_refresh=False, transient=False
        ) as live:
            try:
                while True:
                    await asyncio.sleep(_EVERY)
                    live.update(self.render(), refresh=True)
            finally:
                live.update(self.render(), refresh=True)

    def render(self) -> Table:
        """Return it as it is now."""
        tally, stats = self._run.tally, self._run.stats()
        total = self.total()
        rate = self._rate()
        line = Table.grid(padding=(0, 2))
        row: list[Text | ProgressBar] = [Text(self._title, style="bold")]
        if total is not None:
            row.append(ProgressBar(total=max(total, 1), completed=tally.done, width=20))
        count = (
            f"{tally.done:,}"
            if total is None
            else f"{tally.done:,}/{self._shown(total)}"
        )
        row.append(Text(count))
        row.append(Text(f"{rate:,.0f}/s", style="cyan"))
        if total is not None and rate > 0 and total > tally.done:
            row.append(Text(f"ETA {duration((total - tally.done) / rate)}"))
        else:
            row.append(Text(duration(time.monotonic() - self._began)))
        row.append(
            Text(f"{tally.failed:,} failed", style="red" if tally.failed else "dim")
        )
        restarts = f"{stats.restarts} restarts"
        row.append(Text(restarts, style="yellow" if stats.restarts else "dim"))
        row.append(Text(size_text(memory_of(stats)), style="dim"))
        for _ in row:
            line.add_column(no_wrap=True)
        line.add_row(*row)
        return line

    def total(self) -> int | None:
        """Return how many items there are, as far as that can be told."""
        tally, source = self._run.tally, self._source
        if tally.at_end:
            return tally.drawn
        if source.count is not None:
            return source.count
        if not source.size or not tally.consumed:
            return None
        # As if the rest of the file were like what was read of it.
        return max(tally.drawn, round(tally.drawn * source.size / tally.consumed))

    def _shown(self, total: int) -> str:
        known = self._run.tally.at_end or self._source.count is not None
        return f"{total:,}" if known else f"~{total:,}"

    def _rate(self) -> float:
        """Return how many items a second were done lately, without the journal's."""
        now, tally = time.monotonic(), self._run.tally
        self._past.append((now, tally.done - tally.found))
        while now - self._past[0][0] > _RATE_OVER:
            self._past.popleft()
        then, count = self._past[0]
        if now == then:
            return 0.0
        return (tally.done - tally.found - count) / (now - then)


def memory_of(stats: PoolStats) -> int:
    """Return the bytes that this process and the workers have to themselves."""
    pids = [os.getpid(), *(slot.pid for slot in stats.slots if slot.pid is not None)]
    return sum(map(memory_at_most, pids))


_RETRY_ON: dict[str, Any] = {
    "crash": "crash",
    "hung": "hung",
    "out-of-memory": "out of memory",
    "timeout": JobTimeoutError,
    "error": FunctionRaisedError,
}


# More of them than any machine has use for would only be heard of when it is too late.
_MOST_WORKERS = 4096

_INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says; the options explain each."""

    target: str
    input: str | None
    pattern: str | None
    format: Format | None
    output: str
    failed: str | None
    unordered: bool
    bare: bool
    workers: int | None
    concurrency: int
    loop: Loop
    timeout: float | None
    max_attempts: int
    retry_on: tuple[str, ...]
    kill_memory: int | None
    journal: str | None
    retry_failed: bool
    trace: str | None
    as_json: bool

    @property
    def failures(self) -> str:
        """The path of the file of failures."""
        if self.failed is not None:
            return self.failed
        folder = Path() if self.output == "-" else Path(self.output).parent
        return str(folder / "failed.jsonl")


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
@click.option(
    "--glob",
    "pattern",
    metavar="PATTERN",
    help="Instead of INPUT: call the function with the path of each file that matches, "
    "such as '**/*.png'.",
)
@click.option(
    "--format",
    type=click.Choice(["jsonl", "csv", "lines"]),
    help="What INPUT holds.  By default its name tells: .jsonl and .ndjson, .csv, and "
    "plain lines for all others.",
)
@click.option(
    "--output", "-o", default="-", type=click.Path(), help="Results; stdout by default."
)
@click.option(
    "--failed",
    type=click.Path(),
    help="Inputs that failed, with error, traceback and crash report; by default "
    "failed.jsonl next to the output.  Made only if there are any.",
)
@click.option(
    "--unordered",
    is_flag=True,
    help="Results as they are finished, not in the input's order.",
)
@click.option(
    "--bare", is_flag=True, help="Write the results alone, without index and input."
)
@click.option(
    "--workers",
    "-w",
    type=click.IntRange(min=1, max=_MOST_WORKERS),
    help="Worker processes; one for each usable CPU by default.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1, max=MAX_LANES),
    default=1,
    metavar="N",
    help="How many items each worker has under way at once, if the function is async; "
    "1 by default.  A crash takes all of them.",
)
@pool_options
@click.option(
    "--max-attempts",
    type=click.IntRange(min=1),
    default=1,
    help="How often a worker may begin an item; more than 1 only if it may run twice.",
)
@click.option(
    "--retry-on",
    multiple=True,
    type=click.Choice(list(_RETRY_ON)),
    help="What there is another attempt after; may be given several times.  crash and "
    "hung by default; error is an exception of the function's.",
)
@click.option(
    "--journal",
    type=click.Path(dir_okay=False),
    help="Note in this file what is done.  After Ctrl-C, SIGKILL or a power loss the "
    "same command goes on where it was.",
)
@click.option(
    "--retry-failed",
    is_flag=True,
    help="With --journal: run those again that have failed before.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write to this file what each worker did when; https://ui.perfetto.dev shows it.  "
    "An older trace is replaced.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Write the summary, to stderr, as one line of JSON; no live progress.",
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
            run, source = _prepare(asked, stack)
        except (InputError, JournalError) as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            text = f"cannot write {error.filename}: {error.strerror}"
            raise UnfinishedError(text) from None
        except KeyboardInterrupt:
            return _say_end(asked, Ended(Exit.INTERRUPTED, _INTERRUPTED))
        began = time.monotonic()
        code, problem = _carry_out(asked, run, source)
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


def _prepare(asked: Asked, stack: ExitStack) -> tuple[Run, Input]:
    """Open input, journal and outputs, and make the run."""
    source = open_input(asked.input, asked.pattern, asked.format)
    ordered = not asked.unordered
    journal, position = None, START
    if asked.journal is not None:
        journal = Journal(asked.journal)
        stack.callback(journal.close)
        position = _resume(asked, journal, source)
    outputs = Outputs(asked.output, asked.failures, position, ordered=ordered)
    stack.callback(outputs.close)
    plan = Plan(
        work=Work(asked.target, source.form, asked.bare),
        workers=asked.workers,
        timeout=asked.timeout,
        max_attempts=asked.max_attempts,
        retry_on=tuple(_RETRY_ON[name] for name in asked.retry_on or ("crash", "hung")),
        kill_memory=asked.kill_memory,
        ordered=ordered,
        loop=asked.loop,
        concurrency=asked.concurrency,
        trace=asked.trace,
    )
    return Run(plan, Files(source, journal, outputs), make_pool(plan)), source


def _resume(asked: Asked, journal: Journal, source: Input) -> Position:
    """Check that the journal is this run's; return how far its files are."""
    identity = RunIdentity(
        target=asked.target,
        input=source.name,
        form=source.form,
        ordered=not asked.unordered,
        bare=asked.bare,
    )
    journal.begin(identity, source.size)
    if asked.retry_failed:
        journal.retry_failed()
    position = usable(journal.position, asked.output, asked.failures)
    if position is START:
        journal.begin_files_anew()
    done, failed = journal.counts()
    if done and not asked.as_json:
        say(f"{journal.path} has {done:,} items already, {failed:,} of them failed")
    return position


async def _execute(asked: Asked, run: Run, source: Input, console: Console) -> None:
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
        progress = Progress(run, source, console, asked.target)
        shown = asyncio.create_task(progress.show(), name="asyncpool map: progress")
    try:
        await run.execute()
    finally:
        if shown is not None:
            shown.cancel()
            await asyncio.wait({shown})


def _carry_out(asked: Asked, run: Run, source: Input) -> tuple[int, str]:
    """Carry the run out; return the exit code, and the problem if it did not end well."""
    console = error_console()
    try:
        with WorkerLines.on(console):
            asyncio.run(_execute(asked, run, source, console))
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
