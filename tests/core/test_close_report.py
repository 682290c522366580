"""What is said of a closing pool's jobs."""

from __future__ import annotations

from collections import Counter

import pytest

from asyncpool._runtime.state.draining import describe_waiting, list_functions


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
