"""The public names: pinned, loaded when they are used, and no more than these."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import typing
from pathlib import Path
from types import ModuleType

import pytest

import asyncpool
from asyncpool import cluster, errors, events, stats

PACKAGE = Path(asyncpool.__file__).parent

PUBLIC = """
    AsyncPoolError BoundPool BroadcastError CloseSummary Cluster Codec Crash CurrentJob
    EventStream HookError Job JobCancelled JobError JobNotPicklableError JobRaisedError
    JobTimeoutError LeaseKeeper LeaseLostError LeaseStats Map NoWorkerError NodeLostError Outcome Pool
    PoolBrokenError PoolClosedError PoolFullError PoolServer PoolStats ProcessPoolExecutor
    ProfileInProgressError ProtocolError RemoteError RemoteTraceback ResizeError RestartPolicy RollInProgressError RollResult Sandbox
    SharedPool SlotStats Stream ThrottledError UnsupportedPlatformError WorkerCrashedError
    WorkerGoneError WorkerHungError WorkerLimits WorkerOutOfMemoryError WorkerSession
    WorkerStartError connect current_job heartbeat in_worker retire_worker shared_pool to_process worker_state
"""

EVENTS = """
    Broken Crashed Exited Parked QueueEmptied QueueFull Ready Recovered Resized Restarting
    Retiring Spawned TakenOver
"""

LEASE_EVENTS = """
    LeaseLapsed LeaseLost LeaseMissed LeaseRelieved LeaseSaturated LeaseThrottled
"""


def test_the_public_names_are_these() -> None:
    assert sorted(asyncpool.__all__) == PUBLIC.split()


@pytest.mark.parametrize("name", PUBLIC.split())
def test_every_public_name_is_there_and_documented(name: str) -> None:
    thing = getattr(asyncpool, name)
    assert thing is getattr(asyncpool, name)
    assert thing.__doc__
    assert not thing.__doc__.startswith(f"{name}(")
    assert name in dir(asyncpool)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'asyncpool' has no attribute 'Pol'"):
        asyncpool.Pol  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_see_the_names_that_there_are() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (node.module, alias.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    assert seen == {(home, name) for name, home in asyncpool._HOME.items()}
    assert {name for _, name in seen} == set(asyncpool.__all__)


def test_every_error_is_public() -> None:
    assert set(errors.__all__) <= set(asyncpool.__all__)


def test_the_errors_of_clusters_are_in_their_package_too() -> None:
    assert set(errors.__all__) & set(cluster.__all__) == {
        "NoWorkerError",
        "ResizeError",
    }


def test_the_events_are_these() -> None:
    assert {event.__name__ for event in typing.get_args(events.Event)} == set(
        EVENTS.split()
    )
    assert {event.__name__ for event in typing.get_args(events.LeaseEvent)} == set(
        LEASE_EVENTS.split()
    )
    assert {*EVENTS.split(), *LEASE_EVENTS.split()} <= set(events.__all__)


@pytest.mark.parametrize("event", typing.get_args(events.Event))
def test_the_reference_tells_when_each_event_is_sent(event: type[typing.Any]) -> None:
    fields = ", ".join(field.name for field in dataclasses.fields(event))
    text = (PACKAGE.parent / "docs" / "reference.md").read_text()
    assert f"\n| `{event.__name__}({fields})` | " in text


@pytest.mark.parametrize("record", [events.Crash, asyncpool.CurrentJob])
def test_the_docstring_of_a_record_tells_what_it_has(record: type[typing.Any]) -> None:
    told = re.findall(r"^    (\w+): ", inspect.getdoc(record) or "", re.MULTILINE)
    assert told == list(record.__annotations__)


def test_the_reference_has_the_tree_of_errors() -> None:
    text = (PACKAGE.parent / "docs" / "reference.md").read_text()
    tree = text.partition("```text\nAsyncPoolError")[2].partition("```")[0]
    above, told = ["AsyncPoolError"], {"AsyncPoolError": "Exception"}
    for line in tree.splitlines():
        if branch := re.match(r"([│ ]*)[├└]── (\w+)", line):
            depth = 1 + len(branch[1]) // 4
            told[branch[2]] = above[depth - 1]
            above[depth:] = [branch[2]]
    found = {name: getattr(errors, name) for name in errors.__all__}
    assert told == {
        name: kind.__bases__[0].__name__
        for name, kind in found.items()
        if issubclass(kind, errors.AsyncPoolError)
    }


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module in (events, stats) for name in module.__all__],
)
def test_what_a_pool_tells_is_frozen_data(module: ModuleType, name: str) -> None:
    thing = getattr(module, name)
    if isinstance(thing, type) and not issubclass(thing, enum.Enum | tuple):
        assert dataclasses.is_dataclass(thing)
        assert thing.__dataclass_params__.frozen  # type: ignore[attr-defined]


# Those that users import; what is private is imported by name.
MODULES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if not any(part.startswith("_") for part in path.relative_to(PACKAGE).parts)
)


@pytest.mark.parametrize(
    "path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_every_public_module_says_what_it_exports(path: Path) -> None:
    exported: list[str] = []
    defined = set()
    body = ast.parse(path.read_text()).body
    # What is written twice, for type checkers and for the interpreter, is defined too.
    body += [n for node in body if isinstance(node, ast.If) for n in node.orelse]
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts)):
                exported = [ast.literal_eval(element) for element in elts]
            case ast.Assign(targets=[ast.Name(id=name)]):
                defined.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                defined.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                defined.add(node.name)
            case _:
                pass
    assert exported, "it has no __all__"
    assert exported == sorted(exported, key=by_kind)
    assert set(exported) <= defined


def by_kind(name: str) -> tuple[int, str]:
    """Sort as ruff does: constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)
