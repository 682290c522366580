"""Tests of asyncpool/_runtime/state/crash_report.py."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncpool._runtime.state.crash_report import FRESH, OomLedger


def test_each_kill_explains_one_death() -> None:
    ledger = OomLedger(3)
    ledger.update(3, 1.0)
    assert not ledger.claim(), "those were before its time"
    ledger.update(5, 1.0)
    assert [ledger.claim() for _ in range(3)] == [True, True, False]
    ledger.update(6, 1.0)
    assert [ledger.claim() for _ in range(2)] == [True, False]


def test_a_kill_is_not_forgotten_when_others_have_a_successor() -> None:
    ledger = OomLedger(0)
    ledger.update(2, 1.0)
    assert ledger.claim()
    ledger.update(2, 1.0 + FRESH)
    assert ledger.claim()


def test_what_it_was_is_forgotten_when_it_was_no_worker() -> None:
    ledger = OomLedger(0)
    ledger.update(7, 1.0)
    ledger.update(7, 1.1 + FRESH)
    assert not ledger.claim()
    ledger.update(8, 2.0 + FRESH)
    assert [ledger.claim() for _ in range(2)] == [True, False]


def test_a_count_that_cannot_be_read_for_a_moment_is_no_news() -> None:
    ledger = OomLedger(5)
    ledger.update(0, 1.0)
    ledger.update(5, 2.0)
    assert not ledger.claim()


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(0.0, 2 * FRESH), st.integers(0, 4)),
        max_size=20,
    )
)
def test_no_more_deaths_are_explained_than_there_were_kills(
    steps: list[tuple[int, float, int]],
) -> None:
    ledger, count, now, last = OomLedger(0), 0, 0.0, 0.0
    explained = 0
    for kills, seconds, deaths in steps:
        count, now = count + kills, now + seconds
        last = now if kills else last
        ledger.update(count, now)
        found = sum(ledger.claim() for _ in range(deaths))
        explained += found
        assert explained <= count
        assert found >= min(kills, deaths), "each new one explains a death"
        assert not found or now - last <= FRESH, "none is old"
