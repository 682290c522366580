"""Tests of asyncpool/_core/slots/job_ending.py."""

from __future__ import annotations

import dataclasses
import itertools
import re
import textwrap
from pathlib import Path

import pytest

from asyncpool._core.policies.job_options import KILL
from asyncpool._core.slots import job_ending
from asyncpool._core.slots.job_ending import (
    BY_ITSELF,
    TRANSITIONS,
    EndingEvent,
    EndingStage,
    IllegalTransitionError,
    JobEnding,
    JobEndings,
    next_stage,
)

PAIRS = list(itertools.product(EndingStage, EndingEvent))
NAMES = [stage.name for stage in EndingStage]
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"

# Copied from the drawing, not from the table: each says the other is right.
ARROWS = """
    NONE         REVOKE    REVOKING
    NONE         KEEP      NONE
    NONE         INTERRUPT INTERRUPTING
    NONE         DUMP      DUMPING
    NONE         KILL      KILLING
    NONE         CLOSE     NONE
    REVOKING     REVOKE    REVOKING
    REVOKING     KEEP      NONE
    REVOKING     INTERRUPT INTERRUPTING
    REVOKING     DUMP      DUMPING
    REVOKING     KILL      KILLING
    REVOKING     CLOSE     NONE
    INTERRUPTING REVOKE    INTERRUPTING
    INTERRUPTING KEEP      INTERRUPTING
    INTERRUPTING DUMP      DUMPING
    INTERRUPTING KILL      KILLING
    INTERRUPTING CLOSE     NONE
    DUMPING      REVOKE    DUMPING
    DUMPING      KEEP      DUMPING
    DUMPING      DUMP      DUMPING
    DUMPING      KILL      KILLING
    DUMPING      CLOSE     NONE
    KILLING      REVOKE    KILLING
    KILLING      KEEP      KILLING
    KILLING      INTERRUPT INTERRUPTING
    KILLING      DUMP      DUMPING
    KILLING      CLOSE     NONE
"""


def drawing() -> str:
    """Return the drawing in the module's docstring, as it stands on a page."""
    assert job_ending.__doc__ is not None
    after = job_ending.__doc__.split("The table as a drawing::\n\n")[1]
    lines = itertools.takewhile(
        lambda line: not line or line.startswith("    "), after.split("\n")
    )
    return textwrap.dedent("\n".join(lines)).strip()


def drawn() -> set[tuple[str, str, str]]:
    """Return the arrows of the drawing: each has its sources at its left."""
    arrows = set[tuple[str, str, str]]()
    for block in drawing().split("\n\n"):
        [(event, target)] = re.findall(r"─ (\w+) ─+▶ (.+)", block)
        sources = re.findall(r"^(\(each\)|\w+) ─", block, re.MULTILINE)
        for source in NAMES if sources == ["(each)"] else sources:
            arrows.add((source, event, source if target == "(the same)" else target))
    return arrows


def table() -> set[tuple[str, str, str]]:
    return {
        (stage.name, event.name, target.name)
        for stage, arrows in TRANSITIONS.items()
        for event, target in arrows.items()
    }


def at(stage: EndingStage, due: float | None = None) -> JobEnding:
    """Return the record of a cancelled job at *stage*."""
    return JobEnding(stage, due, mode=KILL)


@pytest.mark.parametrize(
    ("stage", "event"), PAIRS, ids=[f"{s.name}-{e.name}" for s, e in PAIRS]
)
def test_every_pair_is_an_arrow_or_an_error(
    stage: EndingStage, event: EndingEvent
) -> None:
    ending = at(stage, 4.0)
    before = dataclasses.replace(ending)
    if event in TRANSITIONS[stage]:
        ending.apply(event, 5.0)
        assert ending.stage is next_stage(stage, event) is TRANSITIONS[stage][event]
        ending.stage, ending.due = stage, 4.0
    else:
        with pytest.raises(IllegalTransitionError) as caught:
            ending.apply(event, 5.0)
        assert str(caught.value) == f"{event.name} at stage {stage.name}"
    assert ending == before, "nothing else has changed"


def test_the_arrows_are_those_of_the_drawing() -> None:
    listed = {tuple(line.split()) for line in ARROWS.split("\n") if line.strip()}
    assert table() == listed
    assert table() == drawn()
    assert list(TRANSITIONS) == list(EndingStage)


def test_the_page_on_the_architecture_has_the_same_drawing() -> None:
    assert f"```text\n{drawing()}\n```" in PAGE.read_text()


def test_every_stage_can_be_reached_and_left() -> None:
    reached = {EndingStage.NONE}
    for _ in EndingStage:
        reached |= {it for stage in reached for it in TRANSITIONS[stage].values()}
    assert reached == set(EndingStage)
    assert all({*TRANSITIONS[stage].values()} - {stage} for stage in EndingStage)


def test_a_job_is_asked_to_end_once() -> None:
    told = {
        stage for stage in EndingStage if EndingEvent.INTERRUPT in TRANSITIONS[stage]
    }
    assert told == set(EndingStage) - BY_ITSELF


def test_a_stage_that_is_new_has_its_own_deadline() -> None:
    ending, dues = JobEnding(), list[float | None]()
    for event, due in [
        (EndingEvent.REVOKE, None),
        (EndingEvent.INTERRUPT, 2.0),
        (EndingEvent.KILL, 3.0),
        (EndingEvent.INTERRUPT, 4.0),
        (EndingEvent.CLOSE, None),
    ]:
        ending.apply(event, due)
        dues.append(ending.due)
    assert dues == [None, 2.0, 3.0, 4.0, None]


@pytest.mark.parametrize("stage", [EndingStage.INTERRUPTING, EndingStage.DUMPING])
@pytest.mark.parametrize(("due", "then"), [(1.0, 1.0), (3.0, 2.0)])
def test_a_job_that_may_end_by_itself_never_gets_more_time(
    stage: EndingStage, due: float, then: float
) -> None:
    ending = at(stage, 2.0)
    ending.apply(EndingEvent.DUMP, due)
    assert (ending.stage, ending.due) == (EndingStage.DUMPING, then)


@pytest.mark.parametrize("stage", EndingStage)
@pytest.mark.parametrize("due", [1.0, 3.0])
def test_only_a_job_that_may_end_by_itself_has_its_deadline_moved(
    stage: EndingStage, due: float
) -> None:
    ending = at(stage, 2.0)
    ending.extend(due)
    by_itself = stage in {EndingStage.INTERRUPTING, EndingStage.DUMPING}
    assert (ending.stage, ending.due) == (stage, max(2.0, due) if by_itself else 2.0)


@pytest.mark.parametrize("event", [EndingEvent.REVOKE, EndingEvent.KEEP])
@pytest.mark.parametrize(
    "stage", [EndingStage.INTERRUPTING, EndingStage.DUMPING, EndingStage.KILLING]
)
def test_a_question_moves_no_deadline(stage: EndingStage, event: EndingEvent) -> None:
    ending = at(stage, 2.0)
    ending.apply(event)
    assert ending == at(stage, 2.0)


def test_a_job_that_nobody_wants_to_end_has_no_record() -> None:
    endings = JobEndings()
    assert not endings
    assert endings.is_wanted(17)
    assert not endings.is_expired(17)
    assert (endings.due, endings.killing, endings.silent) == (None, None, None)
    assert (endings.by_itself, endings.dumping, endings.unwritten) == ([], [], False)
    assert not endings, "a question makes none"


def test_a_record_is_made_once() -> None:
    endings = JobEndings()
    ending = endings.of(17)
    assert (ending, endings.of(17)) == (JobEnding(), ending)
    assert endings.of(17) is ending


def test_the_first_deadline_counts() -> None:
    endings = JobEndings({1: at(EndingStage.KILLING, 3.0), 2: at(EndingStage.NONE)})
    assert endings.due == 3.0
    endings.apply(2, EndingEvent.INTERRUPT, 2.0)
    assert endings.due == 2.0
    assert [endings.is_due(2, now) for now in (1.9, 2.0)] == [False, True]
    assert not JobEndings({1: at(EndingStage.NONE)}).is_due(1, 5.0)


def test_a_worker_dies_of_the_job_that_was_the_first_to_come_to_that() -> None:
    endings = JobEndings()
    for job in (1, 2, 3):
        endings.apply(job, EndingEvent.INTERRUPT, 9.0)
    endings.apply(2, EndingEvent.KILL, 9.0)
    endings.apply(1, EndingEvent.KILL, 9.0)
    endings.apply(2, EndingEvent.REVOKE)
    assert endings.killing == 2
    assert endings.by_itself == [3]
    assert list(endings) == [3, 2, 1], "in the order in which they came to their stages"


def test_what_cannot_happen_changes_no_order() -> None:
    endings = JobEndings()
    for job in (1, 2):
        endings.apply(job, EndingEvent.KILL, 9.0)
    with pytest.raises(IllegalTransitionError):
        endings.apply(1, EndingEvent.KILL, 10.0)
    assert list(endings.items()) == [
        (job, JobEnding(EndingStage.KILLING, 9.0)) for job in (1, 2)
    ]


def test_a_late_job_that_has_begun_goes_on_as_any_other() -> None:
    endings = JobEndings()
    endings.apply(17, EndingEvent.REVOKE)
    endings[17].expired = True
    assert endings.is_expired(17)
    assert endings.is_wanted(17)
    endings.keep(17)
    assert endings == {}


def test_a_job_that_was_late_and_is_silent_has_been_in_time() -> None:
    endings = JobEndings({17: JobEnding(EndingStage.DUMPING, 2.0, expired=True)})
    endings.keep(17)
    assert endings == {17: JobEnding(EndingStage.DUMPING, 2.0)}


def test_a_cancelled_job_that_has_begun_is_yet_to_be_made_to_end() -> None:
    endings = JobEndings({17: at(EndingStage.REVOKING)})
    assert not endings.is_wanted(17)
    endings.keep(17)
    assert endings == {17: at(EndingStage.NONE)}


def test_stacks_are_missing_until_the_worker_has_written_all_of_them() -> None:
    endings = JobEndings({1: JobEnding(written=False), 2: JobEnding(written=True)})
    endings.apply(1, EndingEvent.DUMP, 1.0)
    endings.apply(2, EndingEvent.INTERRUPT, 1.0)
    assert endings.dumping == [1]
    assert endings.by_itself == [1, 2]
    assert endings.unwritten
    endings[1].written = True
    assert not endings.unwritten


def test_the_silent_job_is_found() -> None:
    endings = JobEndings({1: JobEnding(), 2: JobEnding(silent=True)})
    assert endings.silent == 2
