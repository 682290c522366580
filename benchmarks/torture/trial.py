"""One fault on one peer, from inside the process of the cell.

A trial gives the faults what they share: calls in the background whose outcomes
are kept, time limits as parts of the cell's, and the report. The report goes out
as one line of JSON before the pool is left, for leaving may hang.
"""

import itertools
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from benchmarks.torture import jobs, outcomes
from benchmarks.torture.outcomes import Outcome
from benchmarks.torture.peers.base import Initializer, Peer

WORKERS = 2
KEY = "torture"
"""Starts the report's line, which is not the only one: workers may print too."""

SKIPPED = "skipped"
SAMPLING = 0.02
"""Seconds between two looks at a marker; jobs cannot wake a cell of every peer."""


class Call:
    """A call in the background: its scope cancels it, its outcome is kept."""

    def __init__(
        self, fn: Callable[..., Any], args: Sequence[Any], expected: object
    ) -> None:
        self.fn = fn
        self.args = args
        self.expected = expected
        self.is_culprit = False
        self.scope = anyio.CancelScope()
        self.outcome: Outcome | None = None
        self.settled = anyio.Event()

    async def run(self, peer: Peer, group: anyio.CancelScope) -> None:
        with self.scope:
            try:
                value = await peer.call(self.fn, *self.args)
            except BaseException as error:
                # Peers raise their caller's CancelledError for reasons of their own.
                is_ours = self.scope.cancel_called or group.cancel_called
                if is_ours and isinstance(error, anyio.get_cancelled_exc_class()):
                    raise
                self.outcome = outcomes.of_error(error, is_culprit=self.is_culprit)
            else:
                self.outcome = outcomes.of_value(value, self.expected)
        self.settled.set()


class Trial:
    """What a fault function works with."""

    def __init__(self, peer: Peer, folder: Path, timeout: float) -> None:
        self.peer = peer
        self.folder = folder
        self.timeout = timeout
        self.seen: dict[str, str | float] = {}
        self.notes: dict[str, str] = {}
        self.numbers = itertools.count(1)
        self.is_reported = False
        self.last_look: Callable[[], object] = bool
        """Sees what is counted up to the report, also if the time runs out."""

    @asynccontextmanager
    async def opened(
        self, initializer: Initializer | None = None
    ) -> AsyncIterator[None]:
        """Open the pool, and leave it as its user would."""
        pool = self.peer.open(WORKERS, initializer)
        async with pool, anyio.create_task_group() as self.group:
            yield
            self.group.cancel_scope.cancel()

    def start(self, fn: Callable[..., Any], *args: Any, expected: object = ...) -> Call:
        call = Call(fn, args, expected)
        self.group.start_soon(call.run, self.peer, self.group.cancel_scope)
        return call

    def start_culprit(self, fn: Callable[..., Any], *args: Any) -> Call:
        call = self.start(fn, *args)
        call.is_culprit = True
        return call

    def start_sums(self, count: int) -> list[Call]:
        """Start calls that each have an answer of their own."""
        numbers = [next(self.numbers) for _ in range(count)]
        return [self.start(jobs.add, n, 1_000, expected=n + 1_000) for n in numbers]

    async def wait(self, calls: Sequence[Call], part: float) -> list[Outcome | None]:
        """Wait for *calls*, at most for this *part* of the cell's time."""
        with anyio.move_on_after(self.timeout * part):
            for call in calls:
                await call.settled.wait()
        return [call.outcome for call in calls]

    async def begun(self, name: str) -> int:
        """Wait until the job that signs *name* runs; give its worker's pid."""
        path = Path(self.marker(name))
        while not path.exists():
            await anyio.sleep(SAMPLING)
        return int(path.read_text())

    def marker(self, name: str) -> str:
        return str(self.folder / name)

    async def see_later(self) -> None:
        """See whether the pool still gives three callers their own answers."""
        found = await self.wait(self.start_sums(3), 0.25)
        self.see("later", outcomes.of_later(found))

    def see(self, aspect: str, outcome: Outcome) -> None:
        self.seen[aspect] = outcome.word
        if outcome.note:
            self.notes[aspect] = outcome.note

    def skip(self, reason: str) -> None:
        """Report that the peer offers nothing that this fault could be tried on."""
        self.seen = {SKIPPED: reason}
        self.report()

    def report(self) -> None:
        """Tell the runner, past whatever has become of ``sys.stdout``."""
        if self.is_reported:
            return
        self.last_look()
        self.is_reported = True
        line = json.dumps({KEY: {"seen": self.seen, "notes": self.notes}})
        os.write(1, f"{line}\n".encode())
