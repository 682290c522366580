"""What a call came to, in one word, and what several calls came to together."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.torture import jobs

OK = "ok"
ERROR = "error"
HANG = "HANG"
WRONG = "wrong answer"
FOREIGN = "another's error"
DEAD = "pool dead"


@dataclass(frozen=True)
class Outcome:
    """One word for the table and a note for the reader who wants to know why."""

    word: str
    note: str = ""


def of_value(value: object, expected: object) -> Outcome:
    if expected is ... or value == expected:
        return Outcome(OK)
    return Outcome(WRONG, f"{value!r} for {expected!r}")


def of_error(error: BaseException, *, is_culprit: bool) -> Outcome:
    first_line, *_ = str(error).splitlines() or [""]
    note = f"{type(error).__name__}: {first_line}"[:160].strip(": ")
    # In its own text, that is: a pool may well quote what broke it as the cause.
    is_foreign = not is_culprit and jobs.TOKEN in str(error)
    return Outcome(FOREIGN if is_foreign else ERROR, note)


def printed(error: BaseException) -> str:
    """Give all that a user would see of *error*, causes included."""
    return "".join(traceback.format_exception(error))


def together(outcomes: Sequence[Outcome | None]) -> Outcome:
    """Give the worst of several calls; None is one that has no answer yet."""
    settled = [outcome or Outcome(HANG) for outcome in outcomes]
    for word in (WRONG, FOREIGN, HANG, ERROR):
        for outcome in settled:
            if outcome.word == word:
                return outcome
    return Outcome(OK)


def of_later(outcomes: Sequence[Outcome | None]) -> Outcome:
    """Give the worst of the later calls, or say that there is no pool any more."""
    worst = together(outcomes)
    if all(outcome is not None and outcome.word == ERROR for outcome in outcomes):
        return Outcome(DEAD, worst.note)
    return worst
