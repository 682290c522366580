"""The summary at the end of a run of ``asyncpool map``."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from asyncpool._cli.map.run import Tally
from asyncpool._cli.parameters import Exit
from asyncpool._cli.units import duration
from asyncpool.stats import PoolStats


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
