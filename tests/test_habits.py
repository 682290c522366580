"""How tests are written here: they wait for events, and use fakes, not mocks."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "asyncpool"
CORE = PACKAGE / "_core"

FILES = sorted(TESTS.rglob("*.py"))
# Helpers may wait, with a bound and for a reason: they are where patience lives.  The
# soak is no test: it pauses between what it does, as the users of a pool do.
PATIENT = {TESTS / "helpers", TESTS / "soak"}
SUITE = [path for path in FILES if PATIENT.isdisjoint(path.parents)]

# What reaches into the package, so that nothing else has to.
INSIDE = TESTS / "helpers" / "inside.py"
# Where no test is the test of one module, and nothing private is its own.
OUTSIDE = {TESTS / "e2e", TESTS / "helpers", TESTS / "soak"}

MOCKS = ("unittest.mock", "mock", "pytest_mock")


def name_of(path: Path) -> str:
    return str(path.relative_to(TESTS))


def walk(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text()))


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


def mocks(path: Path) -> list[int]:
    """Return the lines that import a library of mocks, or ask for one."""
    lines = []
    for node in walk(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.arg) and node.arg == "mocker":
            names = ["mock"]
        else:
            continue
        if any(name.startswith(MOCKS) for name in names):
            lines.append(node.lineno)
    return lines


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


def test_no_test_mocks() -> None:
    assert offenders(FILES, mocks) == {}


def awaits(path: Path) -> list[int]:
    """Return the lines that need an event loop."""
    return [
        node.lineno
        for node in walk(path)
        if isinstance(node, ast.AsyncFunctionDef | ast.Await)
    ]


def test_tests_of_the_core_need_no_event_loop() -> None:
    assert offenders(sorted((TESTS / "core").glob("*.py")), awaits) == {}


def is_private(name: str) -> bool:
    return name.startswith("_") and name != "_" and not name.startswith("__")


@functools.cache
def private_names(path: Path) -> frozenset[str]:
    """Return what a module defines for itself: globals, attributes and methods."""
    found = set[str]()
    for node in walk(path):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                found.add(name)
            case _:
                pass
    return frozenset(filter(is_private, found)) - OF_RECORDS


@functools.cache
def imports_of(path: Path) -> set[Path]:
    """Return the modules of the package, and of the tests, that a file imports."""
    dotted = set[str]()
    for node in walk(path):
        if isinstance(node, ast.Import):
            dotted.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            dotted.add(node.module)
            dotted.update(f"{node.module}.{alias.name}" for alias in node.names)
    places = [PACKAGE.parent.joinpath(*name.split(".")) for name in dotted]
    files = [place.with_suffix(".py") for place in places]
    files += [place / "__init__.py" for place in places]
    return {file for file in files if file.exists()}


def own_names(path: Path) -> frozenset[str]:
    """Return what is private to the modules that a test is about, and to itself.

    It imports them, or what stands around them in the same folder does.
    """
    imported = imports_of(path)
    beside = {file for file in imported if path.parent in file.parents}
    modules = imported.union(*map(imports_of, beside))
    about = {file for file in modules if file.is_relative_to(PACKAGE)} | beside
    return private_names(path).union(*map(private_names, about))


MODULES = sorted(PACKAGE.rglob("*.py"))
# What every named tuple has, and says so: it is not private.
OF_RECORDS = {"_asdict", "_fields", "_make", "_replace"}
# What other packages keep to themselves, where ours has something of that name.
OF_OTHERS = {
    TESTS / "e2e/test_executor_differences.py": {
        "_max_workers"
    },  # dask finds it by that name
    TESTS / "e2e/test_map.py": {"_lock"},  # tqdm's
    TESTS / "e2e/test_multiprocessing.py": {
        "_stop"
    },  # that of multiprocessing's tracker
    TESTS / "helpers/sharing.py": {
        "_identity",
        "_reader",
    },  # of its processes and queues
}
BY_NAME = {"attrgetter", "delattr", "getattr", "hasattr", "methodcaller", "setattr"}


def names_reached(node: ast.AST) -> Iterator[str]:
    """Yield the attributes that *node* reaches, of anything but the test's own object."""
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            pass
        case ast.Attribute(attr=name):
            yield name
        case ast.ImportFrom(module=str(module), names=aliases):
            if module.startswith(PACKAGE.name):
                yield from (alias.name for alias in aliases)
        case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)):
            if called in BY_NAME:
                for part in node.args:
                    match part:
                        case ast.Constant(value=str(text)):
                            yield text.rpartition(".")[2]
                        case _:
                            pass
        case _:
            pass


@functools.cache
def names_of_the_package() -> frozenset[str]:
    """Return what is private to one module or another, and is no name of a module."""
    private = frozenset[str]().union(*map(private_names, MODULES))
    return private - {file.stem for file in MODULES}


def intrusions(path: Path, *, unit: bool) -> list[int]:
    """Return the lines that reach what the package keeps to itself.

    Args:
        path: The file.
        unit: Whether it may reach what is private to the modules that it is about.
    """
    own = own_names(path) if unit else private_names(path)
    strange = names_of_the_package() - own - OF_OTHERS.get(path, set())
    lines = {
        node.lineno
        for node in walk(path)
        if isinstance(node, ast.Attribute | ast.Call | ast.ImportFrom)
        and not strange.isdisjoint(names_reached(node))
    }
    return sorted(lines)


def test_private_state_is_reached_through_one_module() -> None:
    outside = [path for path in FILES if not OUTSIDE.isdisjoint(path.parents)]
    units = [path for path in FILES if path not in outside]
    outside.remove(INSIDE)
    found = offenders(outside, functools.partial(intrusions, unit=False))
    assert found == {}
    assert offenders(units, functools.partial(intrusions, unit=True)) == {}


@pytest.mark.parametrize(
    ("line", "bad", "bad_in_a_unit_test"),
    [
        ("pool._supervisor", True, True),
        ("pool._life._process += 1", True, True),
        ("getattr(pool, '_supervisor')", True, True),
        ("monkeypatch.setattr(Traffic, '_take_outcomes', None)", True, True),
        ("monkeypatch.setattr('asyncpool._core.wire.frames._HEADER', 0)", True, False),
        ("from asyncpool._runtime.traffic.traffic import _keep", True, False),
        ("decoder._split(data)", True, False),
        ("self._supervisor", False, False),
        ("entry._replace(name='x')", False, False),
        ("pool.__init__()", False, False),
    ],
)
def test_an_intrusion_is_found(
    line: str,
    bad: bool,  # noqa: FBT001
    bad_in_a_unit_test: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(f"from asyncpool._core.wire.frames import FrameDecoder\n{line}\n")
    assert intrusions(path, unit=False) == [2] * bad
    assert intrusions(path, unit=True) == [2] * bad_in_a_unit_test


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("time.sleep(0.1)", True),
        ("await asyncio.sleep(delay)", True),
        ("await asyncio.sleep(0)", False),
        ("sleep()", True),
        ("pool.submit(time.sleep, 60)", False),
    ],
)
def test_a_sleep_is_found(line: str, bad: bool, tmp_path: Path) -> None:  # noqa: FBT001
    path = tmp_path / "test_it.py"
    path.write_text(f"async def test() -> None:\n    {line}\n")
    assert bool(sleeps(path)) is bad


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("assert time.monotonic() - began < 1.5", True),
        ("assert 0 < loop.time() - began", True),
        ("assert limit > end - perf_counter()", True),
        ("assert time.monotonic() < give_up_at", False),
        ("took = time.monotonic() - began", False),
    ],
)
def test_an_assertion_of_time_is_found(line: str, bad: bool, tmp_path: Path) -> None:  # noqa: FBT001
    path = tmp_path / "test_it.py"
    path.write_text(f"def test() -> None:\n    {line}\n")
    assert bool(timed(path)) is bad


@pytest.mark.parametrize(
    "line",
    ["import mock", "from unittest import mock", "from unittest.mock import patch"],
)
def test_a_mock_is_found(line: str, tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(f"import ast\n{line}\n")
    assert mocks(path) == [2]


def test_a_loop_is_found(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text("def one() -> None: ...\n\nasync def two() -> None: ...\n")
    assert awaits(path) == [3]
