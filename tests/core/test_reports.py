"""What a pool says of ends: of workers, of jobs, of a close, and of a drain."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from asyncpool._cluster.rules import DrainLimit, DrainTimes
from asyncpool._core.slots import CAUSES, JobText, exit_cause
from asyncpool._engine.admission import describe_waiting, list_functions
from asyncpool._engine.deaths import KILL_EXPLAINS_FOR, OomLedger
from asyncpool._remote.objects import load_own, pack_own, text_for_client
from tests.helpers.crashes import crash_with

# Why a worker ended, as a pool writes and reads it.


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("roll", "roll"),
        ("max_memory", "max_memory"),
        ("close", "close"),
        ("uncaught exception", "uncaught exception"),
        ("retire_worker()", "retire_worker"),
        ("retire()", "retire"),
        ("request_replacement(): worn: out", "request_replacement"),
        ("", "other"),
        ("what nobody knows", "other"),
    ],
)
def test_a_cause_names_no_job_and_no_text(reason: str, cause: str) -> None:
    assert exit_cause(reason) == cause
    assert cause in CAUSES


def test_a_text_names_the_clients_own_jobs_only() -> None:
    text = JobText("timeout of job {}", 30, "timeout")
    assert (text, type(pickle.loads(pickle.dumps(text)))) == ("timeout of job 30", str)
    told = text_for_client(text, {30: 1})
    assert (told, text_for_client(told, {1: 5})) == (
        "timeout of job 1",
        "timeout of job 5",
    )
    assert text_for_client(text, {40: 1}) == "timeout"
    assert text_for_client("retire(): job 30", {30: 1}) == "retire(): job 30"


def test_a_crash_has_the_clients_number_of_its_slot_and_names_no_job() -> None:
    crash = crash_with(
        slot=3,
        job_id=7,
        attempt=2,
        concurrent_jobs=(8, 9),
        detail=JobText("killed since job {} did", 8, "killed since another job did"),
    )
    assert load_own(pack_own(crash, {}), 20_000) == crash_with(
        slot=20_003, detail="killed since another job did", other_jobs=2
    )


# What a closing pool waits for.


@pytest.mark.parametrize(
    ("jobs", "queued", "names", "holds", "text"),
    [
        (0, 0, {}, [], "its workers to end"),
        (1, 0, {"app.work": 1}, [], "1 job (1 x app.work)"),
        (
            3,
            1,
            {"app.other": 1, "app.work": 2},
            ["a map of app.work, 12 items under way"],
            (
                "3 jobs, 1 of them in the queue (2 x app.work, 1 x app.other); "
                "a map of app.work, 12 items under way"
            ),
        ),
        (5000, 4998, {"f": 2}, [], "5000 jobs, 4998 of them in the queue (of the oldest 2: 2 x f)"),
        (0, 0, {}, ["a map of f, 0 items under way"] * 7,
         "; ".join([*["a map of f, 0 items under way"] * 5, "2 more maps and sessions"])),
    ],
)  # fmt: skip
def test_it_names_what_a_closing_pool_waits_for(
    jobs: int, queued: int, names: dict[str, int], holds: list[str], text: str
) -> None:
    said = describe_waiting(jobs=jobs, queued=queued, names=Counter(names), holds=holds)
    assert said == text


def test_it_names_five_functions_at_the_most() -> None:
    names = Counter({letter: 10 - n for n, letter in enumerate("abcdefg")})
    text = "10 x a, 9 x b, 8 x c, 7 x d, 6 x e, 9 of others"
    assert list_functions(names) == text


# Which limit ends a drain.


AT_END = "drain_timeout"
REPLACED = "reload_drain_timeout"


@pytest.mark.parametrize(
    ("others_serve", "end_began", "expected"),
    [
        (False, None, (105.0, AT_END, 5.0)),
        (False, 102.0, (105.0, AT_END, 5.0)),
        (True, None, (160.0, REPLACED, 60.0)),
        (True, 120.0, (125.0, AT_END, 5.0)),
        (True, 155.0, (160.0, REPLACED, 60.0)),
        (True, 158.0, (160.0, REPLACED, 60.0)),
    ],
)
def test_the_limit_that_applies_has_the_name_of_its_option(
    others_serve: bool,  # noqa: FBT001 - a parameter of the test
    end_began: float | None,
    expected: tuple[float, str, float],
) -> None:
    found = DrainTimes(5.0, 60.0).limit(100.0, end_began, others_serve=others_serve)
    assert found == DrainLimit(*expected)


# Which deaths the kernel's kills for lack of memory explain.


def test_each_kill_explains_one_death() -> None:
    ledger = OomLedger(3)
    ledger.update(3, 1.0)
    assert not ledger.claim(), "those were before its time"
    ledger.update(5, 1.0)
    assert [ledger.claim() for _ in range(3)] == [True, True, False]
    ledger.update(6, 1.0)
    assert [ledger.claim() for _ in range(2)] == [True, False]


def test_what_it_was_is_forgotten_when_it_was_no_worker() -> None:
    ledger = OomLedger(0)
    ledger.update(7, 1.0)
    ledger.update(7, 1.1 + KILL_EXPLAINS_FOR)
    assert not ledger.claim()
    ledger.update(8, 2.0 + KILL_EXPLAINS_FOR)
    assert [ledger.claim() for _ in range(2)] == [True, False]


def test_a_count_that_cannot_be_read_for_a_moment_is_no_news() -> None:
    ledger = OomLedger(5)
    ledger.update(0, 1.0)
    ledger.update(5, 2.0)
    assert not ledger.claim()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.floats(0.0, 2 * KILL_EXPLAINS_FOR), st.integers(0, 4)
        ),
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
        assert not found or now - last <= KILL_EXPLAINS_FOR, "none is old"
