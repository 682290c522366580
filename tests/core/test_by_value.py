"""What lives in ``__main__``: which scripts can be imported, and what travels by value."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from asyncpool._engine.machine import recognise
from asyncpool._wire import by_value, scripts
from asyncpool._wire.buffers import HEAVY, OverLimitError, ReceivedPickle
from asyncpool._wire.by_value import make_without_hooks
from asyncpool._wire.pickling import dump, dumps_call, loads
from asyncpool._wire.scripts import Script


def look(source: str) -> Script | None:
    return recognise("/a/script.py", textwrap.dedent(source).encode())


def names(source: str) -> Script:
    script = look(source + '\nif __name__ == "__main__": pass')
    assert script is not None
    return script


@pytest.mark.parametrize(
    "test",
    [
        '__name__ == "__main__"',
        '"__main__" == __name__',
        "__name__ in ('__main__',)",
        "__name__ in ['__main__', 'other']",
        "__name__ in {'__main__'}",
        '__name__ == "__main__" and DEBUG',
        'not __name__ != "__main__"',
        'DEBUG or __name__ == "__main__"',
        '__name__ != "__mp_main__"',
        '__name__ != "__main__"',
        '__name__ not in ("__main__",)',
    ],
)
def test_a_guard(test: str) -> None:
    assert look(f"def work(): pass\nif {test}:\n    work()") is not None


@pytest.mark.parametrize(
    "source",
    [
        "",
        "work()",
        "if DEBUG: work()",
        "if __name__: work()",
        "if __name__ == name: work()",
        "if __name__ in names: work()",
        "if __name__ in ('__main__', '__mp_main__'): work()",
        "if name == '__main__': work()",
        "if __name__ < '__main__': work()",
        "def main():\n    if __name__ == '__main__': work()",
        "class A:\n    if __name__ == '__main__': work()",
        "print('__main__', __name__)",
        "if __name__ == '__main__'",
        "\0",
    ],
)
def test_no_guard(source: str) -> None:
    assert look(source) is None


def test_the_globals_that_an_import_defines() -> None:
    script = names(
        """
import os.path, sys as system
from a import b, c as d
x = y = 1
(p, [q, *r]) = t
n: int = 1
def f(inner): local = 1
async def g(): pass
class C:
    attribute = 1
for i in (j := t): k = 1
while True: m = 1
with t as w: pass
try: v = 1
except ValueError as e: u = 1
match t:
    case [h, *o]: pass
    case z: pass
if DEBUG: maybe = 1
else: otherwise = 1
items = [element for element in t]
"""
    )
    found = "os system b d x y p q r n f g C i j k m w v u h o z maybe otherwise items"
    assert script.own == set(found.split())
    assert script.importable == script.own


def test_what_is_defined_again_elsewhere_cannot_be_imported() -> None:
    script = look(
        """
        def f(): pass
        def g(): pass
        def h(): pass
        def set_up():
            global g
            def g(): pass
        if __name__ == "__main__":
            def f(): pass
            def only(): pass
        else:
            def h(): pass
        """
    )
    assert script is not None
    assert script.own == {"f", "g", "h", "set_up"}
    assert script.importable == {"h", "set_up"}


def test_what_is_only_done_in_main_may_stand_in_either_branch() -> None:
    script = look(
        """
        if __name__ != "__main__":
            def there(): pass
        else:
            def here(): pass
        """
    )
    assert script is not None
    assert script.own == script.importable == {"there"}


# By value.

Names = dict[str, Any]


class Sides:
    """The ``__main__`` of a sender, and that of a worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._here, self._there = ModuleType("__main__"), ModuleType("__main__")
        self.here: Names = vars(self._here)
        self.there: Names = vars(self._there)
        monkeypatch.setattr(scripts, "_digests", {})
        monkeypatch.setattr(scripts._Known, "script", None)
        self.stay()

    def stay(self) -> None:
        self._patch.setitem(sys.modules, "__main__", self._here)

    def cross(self) -> None:
        self._patch.setitem(sys.modules, "__main__", self._there)

    def run(self, source: str) -> None:
        exec(compile(source, "/script.py", "exec", dont_inherit=True), self.here)

    def call(self, name: str, *args: object) -> Any:
        return self.deliver(dumps_call((self.here[name], args)))

    def deliver(self, payload: bytes | ReceivedPickle) -> Any:
        self.cross()
        try:
            function, args = loads(payload)
            return function(*args)
        finally:
            self.stay()


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sides]:
    return Sides(monkeypatch)  # type: ignore[return-value]


def test_only_a_function_that_may_have_changed_is_pickled_again(sides: Sides) -> None:
    sides.run("""
import math
def plain(x: "int") -> "int": return math.floor(x)
def with_default(x=1): return x
def typed(x: int) -> int: return x
def all_of(x): return plain(x), with_default(), typed(x)
""")
    first = sides.call("all_of", 2)
    sides.here["with_default"].__defaults__ = (5,)
    assert (first, sides.call("all_of", 2)) == ((2, 1, 2), (2, 5, 2))
    sides.here["plain"].__code__ = (lambda x: -x).__code__
    assert sides.call("all_of", 2) == (-2, 5, 2)
    pieces = set(by_value._functions)
    assert sides.here["plain"] in pieces
    assert pieces.isdisjoint((sides.here["with_default"], sides.here["typed"]))


def test_too_large_a_global_is_too_large_for_this_thread(sides: Sides) -> None:
    sides.run("words = [str(n) for n in range(10_000)]\ndef look(): return len(words)")
    with pytest.raises(OverLimitError):
        dump((sides.here["look"], ()), limit=1000)
    assert sides.call("look") == 10_000
    # Nor is a large buffer hashed, though that stays out of the stream.
    sides.run("import numpy\nones = numpy.ones(100_000)\ndef sums(): return ones.sum()")
    with pytest.raises(OverLimitError):
        dump((sides.here["sums"], ()), limit=HEAVY)
    assert sides.call("sums") == 100_000


def test_a_unit_that_cannot_be_made_leaves_nothing_half_done(sides: Sides) -> None:
    sides.run("""
class Broken:
    def __reduce__(self): return int, ("x",)
broken = Broken()
def look(): return broken
""")
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            sides.call("look")
    assert not scripts._coming
    sides.here["broken"] = 7
    assert sides.call("look") == 7


def test_a_base_has_its_hook_again_whatever_happens() -> None:
    called: list[type] = []

    class Base:
        def __init_subclass__(cls) -> None:
            called.append(cls)

    hook = vars(Base)["__init_subclass__"]
    made = make_without_hooks([Base, int], type, "Made", (Base,), {}, None, None)
    assert issubclass(made, Base)
    with pytest.raises(TypeError, match="not an acceptable base type"):
        make_without_hooks([Base], type, "Made", (Base, bool), {}, None, None)
    assert vars(Base)["__init_subclass__"] is hook
    assert called == []
    assert type("Other", (Base,), {}) in called
