"""Who is silent, in virtual time: found if it is, and never accused if it is not."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.slots.health import LATE, HealthLedger
from asyncpool.errors import ProtocolError

TIMEOUT = 8.0
TICK = TIMEOUT / 4
UP = {"one", "two"}


def ledger() -> HealthLedger[str]:
    """Return a ledger at the time 0."""
    return HealthLedger(TIMEOUT, 0.0)


def test_each_tick_asks_those_who_have_answered() -> None:
    health = ledger()
    assert health.due == TICK
    assert health.tick(["one", "two"], TICK) == ([], ["one", "two"])
    assert health.due == 2 * TICK
    health.answered("one")
    assert health.tick(["one", "two", "three"], 2 * TICK) == ([], ["one", "three"])


def test_what_nobody_has_asked_for_is_an_offence() -> None:
    health = ledger()
    for _ in range(2):
        with pytest.raises(ProtocolError) as caught:
            health.answered("one")
        assert str(caught.value) == "it answered a ping that nobody has sent"
        health.tick(UP, health.due)
        health.answered("one")


def test_who_has_not_answered_for_the_whole_timeout_is_silent() -> None:
    health = ledger()
    for number in range(1, 5):
        silent, _ = health.tick(UP, number * TICK)
        assert silent == []
        health.answered("one")
    assert health.suspects(5 * TICK - 0.1) == []
    assert health.suspects(5 * TICK) == ["two"]
    assert health.tick(UP, 5 * TICK) == (["two"], ["one"])
    # It is forgotten, and may be asked again in its next life.
    assert health.tick(UP, 6 * TICK) == ([], ["two"])


def test_an_answer_in_the_last_moment_saves() -> None:
    health = ledger()
    for number in range(1, 5):
        health.tick(["one"], number * TICK)
    assert health.suspects(5 * TICK) == ["one"]
    health.answered("one")
    assert health.tick(["one"], 5 * TICK) == ([], ["one"])


def test_whatever_else_it_says_gives_it_the_whole_time_again() -> None:
    health = ledger()
    for number in range(1, 5):
        health.tick(["one"], number * TICK)
    health.heard("one", 2 * TICK)
    health.heard("one", TICK)
    health.heard("nobody", TICK)
    assert health.tick(["one"], 5 * TICK) == ([], [])
    assert health.tick(["one"], 6 * TICK) == (["one"], [])


def test_who_is_not_up_is_forgotten() -> None:
    health = ledger()
    health.tick(UP, TICK)
    assert health.tick(["two"], 2 * TICK) == ([], [])
    assert health.tick(UP, 3 * TICK) == ([], ["one"])
    late = [health.tick(UP, number * TICK)[0] for number in range(4, 8)]
    assert late == [[], ["two"], [], ["one"]]


@pytest.mark.parametrize(("late", "silent"), [(LATE, True), (2 * LATE, False)])
def test_a_gap_counts_for_nobody(late: float, silent: bool) -> None:  # noqa: FBT001
    health = ledger()
    for lateness in (0.0, 0.0, late, 0.0):
        health.tick(["one"], health.due + lateness)
    # The ping is as old as the timeout, and older by that with the lateness.
    assert bool(health.suspects(health.due - 0.1)) is silent
    assert health.tick(["one"], health.due + 1024.0) == (["one"], [])


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 100.0),  # how late the tick is
            st.booleans(),  # whether the worker answers before the next one
        ),
        max_size=60,
    )
)
def test_silence_is_found_and_nothing_else(story: list[tuple[float, bool]]) -> None:
    health, now = ledger(), 0.0
    unanswered = 0.0  # for how long, gaps not counted
    asked = False
    for late, answers in story:
        before, now = now, health.due + late
        gap = late if late > LATE else 0.0
        if asked:
            unanswered += now - before - gap
        silent, pinged = health.tick(["one"], now)
        if unanswered > TIMEOUT + 1e-6:
            assert silent == ["one"]
        if unanswered < TIMEOUT - 1e-6:
            assert silent == []
        if silent:
            asked, unanswered = False, 0.0
            continue
        assert pinged == ([] if asked else ["one"])
        asked = True
        if answers:
            health.answered("one")
            asked, unanswered = False, 0.0
