"""Tests of tests/mutants: what is changed, what is left alone, and what becomes of it."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.mutants.__main__ import CORE, DECISIONS, TESTS
from tests.mutants.mutate import mutants
from tests.mutants.run import ROOT


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("x = a < b", ["a <= b"]),
        ("x = a >= b < c", ["a > b < c"]),
        ("x = a is None", ["a is not None"]),
        ("x = a in b and c", ["a in b or c", "a not in b"]),
        ("x = not a", ["a"]),
        ("x = a + b", ["a - b"]),
        ("x = True", ["False"]),
        ("x = 7", ["8"]),
        ("x = -1.5", ["2.5"]),
        ("x = min(a, b)", ["max(a, b)"]),
        ("x = a if b else c", ["c if b else a"]),
        ("x += a", ["x -= a"]),
        ("x.y = a", ["pass"]),
        ("x[y] = a", ["pass"]),
        ("f(a)", ["pass"]),
        ("del x[a]", ["pass"]),
        ("if a: pass", ["if not a:"]),
        ("if a < b: pass", ["a <= b"]),
        ("while a: break", ["while not a:", "continue"]),
        ("def f(): return a", ["return None"]),
        ("def f(): return", []),
        ("def f(a: int | None = 3) -> int | None: pass", ["4"]),
        ("@a(1 < 2)\ndef f(): pass", []),
        ("class A(B[1]):\n    x = 2", ["3"]),
        ("def f(): 'text'", []),
        ("def __repr__(self): return 1 + 2", []),
        ("assert a < 3", []),
        ("x = f'{a + b}' 'text'", []),
        ("T = TypeVar('T', bound=1)", []),
    ],
)
def test_what_is_changed(line: str, found: list[str]) -> None:
    assert [mutant.after for mutant in mutants(line)] == found


def test_each_has_one_change_and_says_where() -> None:
    source = "class A:\n    def f(self):\n        return self.x < 1\n"
    several = mutants(source)
    assert [str(mutant) for mutant in several] == [
        "3 A.f: `return self.x < 1` -> `return None`",
        "3 A.f: `self.x < 1` -> `self.x <= 1`",
        "3 A.f: `1` -> `2`",
    ]
    assert [
        ast.unparse(mutant.tree).splitlines()[-1].strip() for mutant in several
    ] == [
        "return None",
        "return self.x <= 1",
        "return self.x < 2",
    ]


# In an interpreter of its own, as the tests of a mutant do not run within another test.
TRY = """
import ast, sys
from pathlib import Path
from tests.mutants.run import Trial

path, tests, before, after, limit = sys.argv[1:]
tree = ast.parse(Path(path).read_text().replace(before, after))
print(Trial(Path(path), tree, [Path(tests)], float(limit)).end().name)
"""


@pytest.mark.parametrize(
    ("before", "after", "limit", "outcome"),
    [
        ("=", "=", 60.0, "LIVES"),
        ("retry_on: tuple", "retries: tuple", 60.0, "KILLED"),
        ("MAX_FREE_RETURNS = 3", "MAX_FREE_RETURNS = 1 / 0", 60.0, "KILLED"),
        ("MAX_FREE_RETURNS = 3", "while True: pass", 3.0, "SLOW"),
    ],
)
def test_what_becomes_of_one(
    before: str, after: str, limit: float, outcome: str
) -> None:
    path = CORE / "policies" / "attempts.py"
    tests = TESTS / "test_attempts.py"
    arguments = [str(path), str(tests), before, after, str(limit)]
    found = subprocess.run(
        [sys.executable, "-c", TRY, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [outcome]


def test_the_modules_that_are_tried_by_default_exist() -> None:
    assert set(DECISIONS) <= {path.stem for path in CORE.rglob("*.py")}
