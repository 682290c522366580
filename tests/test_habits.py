"""How tests are written here: they wait for events.  (That they use no mocks, ruff sees.)"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "asyncpool"

FILES = sorted(TESTS.rglob("*.py"))
# Helpers may wait, with a bound and for a reason: they are where patience lives.  The
# soak is no test: it pauses between what it does, as the users of a pool do.
PATIENT = {TESTS / "helpers", TESTS / "soak"}
SUITE = [path for path in FILES if PATIENT.isdisjoint(path.parents)]


def name_of(path: Path) -> str:
    return str(path.relative_to(TESTS))


@functools.cache
def walk(path: Path) -> list[ast.AST]:
    """Return what the rules look at; a file is parsed once for all of them."""
    kinds = ast.Call, ast.Assert
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, kinds)]


def offenders(
    paths: list[Path], found: Callable[[Path], list[int]]
) -> dict[str, list[int]]:
    """Return the lines that were found, by file; one test for all files, since it is short."""
    return {name_of(path): lines for path in paths if (lines := found(path))}


def sleeps(path: Path) -> list[int]:
    """Return the lines that call any ``sleep`` with anything but a literal zero."""
    lines = []
    for node in walk(path):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        argument = node.args[0] if node.args else None
        is_zero = isinstance(argument, ast.Constant) and argument.value == 0
        if called == "sleep" and not is_zero:
            lines.append(node.lineno)
    return lines


def test_no_test_sleeps() -> None:
    assert offenders(SUITE, sleeps) == {}


CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time"}


def timed(path: Path) -> list[int]:
    """Return the lines that assert how long something took by a clock."""
    return [
        node.lineno
        for node in walk(path)
        if isinstance(node, ast.Assert)
        for part in ast.walk(node.test)
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub)
        for side in (part.left, part.right)
        if isinstance(side, ast.Call)
        and getattr(side.func, "attr", getattr(side.func, "id", "")) in CLOCKS
    ]


def test_no_test_asserts_how_long_something_takes() -> None:
    """A machine under load takes longer: what is too slow is counted instead."""
    assert offenders(SUITE, timed) == {}


def test_every_task_of_the_package_has_a_name() -> None:
    """With them, ``python -m asyncio ps`` tells what a service waits for."""
    nameless = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in walk(path)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in {"create_task", "start_soon"}
        and "name" not in {keyword.arg for keyword in node.keywords}
    ]
    assert nameless == []


# These make tasks of coroutines, and give them no names.
NAMELESS = {"ensure_future", "wait_for", "as_completed"}


def test_no_task_of_the_package_is_made_without_a_name() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in walk(path)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {f"asyncio.{name}" for name in NAMELESS}
    ]
    assert found == []


@pytest.mark.parametrize(
    ("rule", "line", "bad"),
    [
        (sleeps, "time.sleep(0.1)", True),
        (sleeps, "await asyncio.sleep(delay)", True),
        (sleeps, "await asyncio.sleep(0)", False),
        (sleeps, "sleep()", True),
        (sleeps, "pool.submit(time.sleep, 60)", False),
        (timed, "assert time.monotonic() - began < 1.5", True),
        (timed, "assert 0 < loop.time() - began", True),
        (timed, "assert limit > end - perf_counter()", True),
        (timed, "assert time.monotonic() < give_up_at", False),
        (timed, "took = time.monotonic() - began", False),
    ],
)
def test_an_offence_is_found(
    rule: Callable[[Path], list[int]],
    line: str,
    bad: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(f"async def test() -> None:\n    {line}\n")
    assert rule(path) == [2] * bad
