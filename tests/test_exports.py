"""The public names: there when they are used, and documented."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pickle
import re
import typing
from pathlib import Path

import pytest

import asyncpool
from asyncpool import errors, events, stats

PACKAGE = Path(asyncpool.__file__).parent

RECORDS = [
    cls
    for module in (events, stats)
    for cls in map(vars(module).get, module.__all__)
    if dataclasses.is_dataclass(cls)
]


@pytest.mark.parametrize("name", asyncpool.__all__)
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


@pytest.mark.parametrize("event", typing.get_args(events.Event))
def test_the_reference_tells_when_each_event_is_sent(event: type[typing.Any]) -> None:
    fields = ", ".join(field.name for field in dataclasses.fields(event))
    text = (PACKAGE.parent / "docs" / "reference.md").read_text()
    assert f"\n| `{event.__name__}({fields})` | " in text


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


@pytest.mark.parametrize("cls", RECORDS)
def test_events_and_figures_are_frozen_dataclasses(cls: type[typing.Any]) -> None:
    names = [field.name for field in dataclasses.fields(cls)]
    one = cls(**dict.fromkeys(names, 1))
    assert list(inspect.signature(cls).parameters) == names
    assert one == dataclasses.replace(one) == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(dataclasses.replace(one))
    for name in names:
        assert one != dataclasses.replace(one, **{name: 2})
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"assign.*{name}"):
            setattr(one, name, 2)
    with pytest.raises(TypeError, match=f"{cls.__name__}.__init__.*'nonsense'"):
        cls(nonsense=1)
    derived: typing.Any = type("Derived", (cls,), {})
    assert dataclasses.dataclass(frozen=True)(derived)(**dict.fromkeys(names, 1)) != one


def test_a_wrong_call_is_told_as_by_dataclasses() -> None:
    make: typing.Any = events.Ready
    assert repr(make(1, 2, 3, seconds=4)).endswith(
        "Ready(slot=1, generation=2, pid=3, seconds=4)"
    )
    for args, text in (
        ((1, 2), "missing 2 required positional arguments: 'pid' and 'seconds'"),
        ((1, 2, 3, 4, 5), "takes 5 positional arguments but 6 were given"),
        ((1, 2, 3, 4), "got multiple values for argument 'slot'"),
    ):
        with pytest.raises(TypeError, match=re.escape(f"Ready.__init__() {text}")):
            make(*args, **({"slot": 1} if len(args) == 4 else {}))
