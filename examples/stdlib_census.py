"""Count what is in the standard library of the Python that runs this.

Every module is parsed in a pool of workers.  With --chaos they are killed at
random meanwhile, and the result must still be that of a serial run.
"""

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path

from rich.console import Console

import asyncpool
from census.account import Account
from census.export import save_json, save_svg
from census.library import Library, standard_library
from census.options import Options, parse
from census.progress import ticker
from census.report import show
from census.runs import Findings, PooledCensus, in_this_process
from census.totals import add_up

INTERRUPTED = 130  # what a shell reports for a program that SIGINT ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the census and return the exit status."""
    options = parse(str(__doc__), arguments)
    keep_quiet()
    try:
        return take_census(options, standard_library(options.limit, options.seed))
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except asyncpool.errors.AsyncPoolError as error:
        complain(f"the pool failed: {error}")
        return 1
    except OSError as error:
        # Most likely stdout is full or closed: what it still holds back is lost.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            complain(str(error))
        return 1


def take_census(options: Options, library: Library) -> int:
    """Take it the way *options* say; print what was found, and save it."""
    if not library.paths:
        complain(f"there is no Python source in {library.root}")
        return 1
    console = Console(highlight=False)
    account = None
    if options.serial:
        findings = serial(console, options, library)
    else:
        findings, account = pooled(console, options, library)
    equal = None
    if options.chaos:
        equal = same(findings, serial(console, options, library))
    totals = add_up(findings.values())
    show(console, totals, account, equal=equal)
    saved = [
        save(options.json, lambda file: save_json(file, findings.values(), totals)),
        save(options.svg, lambda file: save_svg(file, totals, account, equal=equal)),
    ]
    return 0 if equal is not False and all(saved) else 1


def pooled(
    console: Console, options: Options, library: Library
) -> tuple[Findings, Account]:
    """Take the census in a pool."""
    with ticker(console, "pool", len(library.paths), plain=options.plain) as tick:
        census = PooledCensus(
            library, tick, options.workers, options.chaos, options.seed
        )
        asyncio.run(census.run())
    return census.findings, census.account


def serial(console: Console, options: Options, library: Library) -> Findings:
    """Take the census without a pool."""
    with ticker(console, "serial", len(library.paths), plain=options.plain) as tick:
        return in_this_process(library, tick)


def same(findings: Findings, expected: Findings) -> bool:
    """Compare two results, and name every file in which they differ."""
    for path in sorted(findings.keys() | expected.keys()):
        if findings.get(path) != expected.get(path):
            complain(f"{path}: {findings.get(path)} is not {expected.get(path)}")
    return findings == expected


def save(target: Path | None, write: Callable[[Path], None]) -> bool:
    """Write one of the files that were asked for; return whether that went well."""
    try:
        if target is not None:
            write(target)
    except OSError as error:
        complain(f"cannot write {target}: {error.strerror}")
        return False
    return True


def keep_quiet() -> None:
    """Keep what dying workers leave behind off the screen and the disk."""
    # The pool logs each death; the table at the end tells of them all.
    logging.getLogger("asyncpool").addHandler(logging.NullHandler())
    # No core dumps.  A limit of 1 byte also holds where they are piped to a
    # program, which a limit of 0 does not.
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if hard == 0 else 1, hard))
    # A name or a reason may hold what this terminal cannot show.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def complain(text: str) -> None:
    """Print *text* where errors go."""
    print(f"stdlib_census: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
