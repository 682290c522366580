"""Who is silent, in virtual time: found if it is, and never accused if it is not."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.base.deadlines import LATE, PingLedger
from asyncpool.errors import ProtocolError

TIMEOUT = 8.0
TICK = TIMEOUT / 4
UP = {"one", "two"}


def ledger() -> PingLedger[str]:
    """Return a ledger at the time 0."""
    return PingLedger(TIMEOUT, 0.0)


def test_each_tick_asks_those_who_have_answered() -> None:
    pings = ledger()
    assert pings.due == TICK
    assert pings.tick(["one", "two"], TICK) == ([], ["one", "two"])
    assert pings.due == 2 * TICK
    pings.answered("one")
    assert pings.tick(["one", "two", "three"], 2 * TICK) == ([], ["one", "three"])


def test_what_nobody_has_asked_for_is_an_offence() -> None:
    pings = ledger()
    for _ in range(2):
        with pytest.raises(ProtocolError) as caught:
            pings.answered("one")
        assert str(caught.value) == "it answered a ping that nobody has sent"
        pings.tick(UP, pings.due)
        pings.answered("one")


def test_who_has_not_answered_for_the_whole_timeout_is_silent() -> None:
    pings = ledger()
    for number in range(1, 5):
        silent, _ = pings.tick(UP, number * TICK)
        assert silent == []
        pings.answered("one")
    assert pings.suspects(5 * TICK - 0.1) == []
    assert pings.suspects(5 * TICK) == ["two"]
    assert pings.tick(UP, 5 * TICK) == (["two"], ["one"])
    # It is forgotten, and may be asked again in its next life.
    assert pings.tick(UP, 6 * TICK) == ([], ["two"])


def test_an_answer_in_the_last_moment_saves() -> None:
    pings = ledger()
    for number in range(1, 5):
        pings.tick(["one"], number * TICK)
    assert pings.suspects(5 * TICK) == ["one"]
    pings.answered("one")
    assert pings.tick(["one"], 5 * TICK) == ([], ["one"])


def test_whatever_else_it_says_gives_it_the_whole_time_again() -> None:
    pings = ledger()
    for number in range(1, 5):
        pings.tick(["one"], number * TICK)
    pings.heard("one", 2 * TICK)
    pings.heard("one", TICK)
    pings.heard("nobody", TICK)
    assert pings.tick(["one"], 5 * TICK) == ([], [])
    assert pings.tick(["one"], 6 * TICK) == (["one"], [])


def test_who_is_not_up_is_forgotten() -> None:
    pings = ledger()
    pings.tick(UP, TICK)
    assert pings.tick(["two"], 2 * TICK) == ([], [])
    assert pings.tick(UP, 3 * TICK) == ([], ["one"])
    late = [pings.tick(UP, number * TICK)[0] for number in range(4, 8)]
    assert late == [[], ["two"], [], ["one"]]


@pytest.mark.parametrize(("late", "silent"), [(LATE, True), (2 * LATE, False)])
def test_a_gap_counts_for_nobody(late: float, silent: bool) -> None:  # noqa: FBT001
    pings = ledger()
    for lateness in (0.0, 0.0, late, 0.0):
        pings.tick(["one"], pings.due + lateness)
    # The ping is as old as the timeout, and older by that with the lateness.
    assert bool(pings.suspects(pings.due - 0.1)) is silent
    assert pings.tick(["one"], pings.due + 1024.0) == (["one"], [])


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
    pings, now = ledger(), 0.0
    unanswered = 0.0  # for how long, gaps not counted
    asked = False
    for late, answers in story:
        before, now = now, pings.due + late
        gap = late if late > LATE else 0.0
        if asked:
            unanswered += now - before - gap
        silent, pinged = pings.tick(["one"], now)
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
            pings.answered("one")
            asked, unanswered = False, 0.0
