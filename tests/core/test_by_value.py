"""Tests of asyncpool/_core/main/by_value.py and of what it is for, arrivals.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from asyncpool._core.main import by_value, by_value_loading as arrivals, main_module
from asyncpool._core.main.scripts import Script
from asyncpool._core.pickling import out_of_band as parcels
from asyncpool._core.pickling.out_of_band import (
    ReceivedPickle,
    StreamTooLongError,
    dump,
    dumps_call,
    loads,
)
from asyncpool._core.pickling.reducers import LARGE
from tests.core.specimens import LOCK
from tests.helpers.parcels import Array

Names = dict[str, Any]


class Sides:
    """The ``__main__`` of a sender, and that of a worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._here, self._there = ModuleType("__main__"), ModuleType("__main__")
        self.here: Names = vars(self._here)
        self.there: Names = vars(self._there)
        monkeypatch.setattr(arrivals, "_digests", {})
        monkeypatch.setattr(main_module._Known, "script", None)
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


def test_a_function_and_what_it_needs_is_made_once(sides: Sides) -> None:
    sides.run("""
import math
FACTOR = 2
def scale(x): return x * FACTOR + math.floor(0.5)
def outer(x): return scale(x) + 1
""")
    assert sides.call("outer", 3) == 7
    made = sides.there["scale"]
    assert made is not sides.here["scale"]
    assert made.__globals__ is sides.there
    assert sides.call("outer", 4) == 9
    assert sides.there["scale"] is made


def test_code_keeps_its_file_and_its_lines(sides: Sides) -> None:
    sides.run("""
def outer():
    def inner(): pass
    return inner
""")
    inner = sides.call("outer")
    made = sides.there["outer"]
    assert made.__code__.co_filename == inner.__code__.co_filename == "/script.py"
    assert (made.__code__.co_firstlineno, inner.__code__.co_firstlineno) == (2, 3)


def test_what_was_assigned_there_stays(sides: Sides) -> None:
    sides.run("""
connection, count = None, 0
def init():
    global connection
    connection = "up"
def look():
    global count
    count += 1
    return connection, count
""")
    sides.call("init")
    assert [sides.call("look") for _ in range(3)] == [("up", n) for n in (1, 2, 3)]
    assert (sides.here["connection"], sides.here["count"]) == (None, 0)


def test_what_has_changed_is_set_again_and_nothing_else(sides: Sides) -> None:
    sides.run("""
config, seen = {"x": 1}, []
def look():
    seen.append(config["x"])
    return list(seen)
""")
    assert sides.call("look") == [1]
    sides.here["config"]["x"] = 2
    assert sides.call("look") == [1, 2]


def test_what_a_job_has_made_is_not_replaced(sides: Sides) -> None:
    sides.run("late = 1\ndef look(): return late")
    sides.there["late"] = 2
    assert sides.call("look") == 2
    sides.here["late"] = 3
    assert sides.call("look") == 3


def test_a_global_that_is_deleted_here_is_deleted_there(sides: Sides) -> None:
    sides.run("x = 1\ndef look(): return x")
    assert sides.call("look") == 1
    del sides.here["x"]
    with pytest.raises(NameError, match="'x' is not defined"):
        sides.call("look")
    sides.there["x"] = 5  # a job's own
    assert sides.call("look") == 5


def test_globals_that_share_an_object_share_one_there(sides: Sides) -> None:
    sides.run("""
first = second = []
third = {"it": first}
def look(): return first is second and third["it"] is first
def change(): first.append(1); return len(second)
""")
    assert sides.call("look")
    assert sides.call("change") == 1
    sides.here["third"]["other"] = 1
    assert sides.call("look"), "they are set together"


def test_what_refers_to_what_has_changed_is_made_anew(sides: Sides) -> None:
    sides.run("""
def handler(): return "old"
table = {"it": handler}
def look(): return table["it"](), table["it"] is handler
""")
    assert sides.call("look") == ("old", True)
    sides.here["handler"].__defaults__ = ()  # as it was
    assert sides.call("look") == ("old", True)
    sides.run("def handler(): return 'new'\ntable['it'] = handler")
    assert sides.call("look") == ("new", True)


def test_classes_that_need_each_other(sides: Sides) -> None:
    sides.run("""
class A:
    def who(self): return __class__.__name__
class B(A):
    def who(self): return super().who() + "B"
A.other = B
def look(b): return b.who(), type(b) is B, A.other is B, B.__base__ is A
""")
    assert sides.call("look", sides.here["B"]()) == ("AB", True, True, True)


def test_a_class_lasts_and_comes_back_as_what_it_is_here(sides: Sides) -> None:
    sides.run("""
class Counter:
    n = 0
    class Inner: pass
def count():
    Counter.n += 1
    return Counter(), Counter.Inner(), count, Counter.n
""")
    for expected in (1, 2):
        found = sides.call("count")
        assert found[3] == expected
        sides.cross()
        pickled = _pickled_there(found)
        sides.stay()
        counter, inner, function, _ = loads(pickled)
        assert type(counter) is sides.here["Counter"]
        assert type(inner) is sides.here["Counter"].Inner
        assert function is sides.here["count"]


def test_a_class_keeps_its_slots_and_its_cached_properties(sides: Sides) -> None:
    sides.run("""
import dataclasses, functools
class Point:
    __slots__ = ("x", "__weakref__")
    def __init__(self, x): self.x = x
@dataclasses.dataclass(slots=True, weakref_slot=True)
class Data:
    x: int
class Circle:
    @functools.cached_property
    def area(self):
        "It has a docstring."
        return [3]
def use(point, data, circle):
    found = circle.area is circle.area, Circle.area.__doc__
    return Point(point.x + 1), Data(data.x + 1), circle, found
""")
    here = sides.here
    given = here["Point"](1), here["Data"](1), here["Circle"]()
    found = sides.call("use", *given)
    sides.cross()
    pickled = _pickled_there(found)
    sides.stay()
    point, data, circle, how = loads(pickled)
    assert [type(it) for it in (point, data, circle)] == [type(it) for it in given]
    assert (point.x, data, circle.area) == (2, here["Data"](2), [3])
    assert not hasattr(point, "__dict__")
    assert how == (True, "It has a docstring.")


def _pickled_there(value: object) -> bytes:
    from asyncpool._core.pickling.calls import dumps

    return dumps(value)


def test_a_function_that_remembers_goes_on_to_remember(sides: Sides) -> None:
    sides.run("""
import functools
@functools.lru_cache(maxsize=7)
def load(x): return [x]
def info(): return load(1) is load(1), load.cache_info().maxsize
""")
    assert sides.call("load", 1) is sides.call("load", 1)
    assert sides.call("info") == (True, 7)


def test_a_function_that_has_another_name_is_still_what_it_was(sides: Sides) -> None:
    sides.run("""
def old(): return "old"
other = old
def look(): return other(), old(), other is old
""")
    assert sides.call("look") == ("old", "old", True)
    sides.run("def old(): return 'new'")
    assert sides.call("look") == ("old", "new", False)


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


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "def use(): return LOCK",
            (
                "use() needs the global 'LOCK', a lock, which cannot be pickled (cannot "
                "pickle '_thread.lock' object): {}"
            ),
        ),
        (
            "def use(): return inner()\ndef inner(): return [LOCK]",
            (
                "inner() needs the global 'LOCK', a lock, which cannot be pickled (cannot "
                "pickle '_thread.lock' object): {}"
            ),
        ),
        (
            "class use: lock = LOCK",
            (
                "the global 'use', a type, cannot be pickled (cannot pickle '_thread.lock' "
                "object): {}"
            ),
        ),
    ],
)
@pytest.mark.parametrize("guarded", [False, True])
def test_what_cannot_be_pickled_is_named(
    sides: Sides,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    text: str,
    *,
    guarded: bool,
) -> None:
    sides.here["LOCK"] = LOCK
    sides.run(source)
    way_out = (
        "put it into a module, or give the script an `if __name__ == '__main__':` guard"
    )
    if guarded:
        script = Script("", "/script.py", frozenset(), frozenset())
        monkeypatch.setattr(main_module._Known, "script", script)
        way_out = "put it in front of the script's guard"
    with pytest.raises(by_value.GlobalError) as caught:
        dumps_call((sides.here["use"], ()))
    assert str(caught.value) == text.format(way_out)
    way_out = "put it into a module that the workers, which belong to another program, can import"
    with main_module.Abroad(), pytest.raises(by_value.GlobalError) as caught:
        dumps_call((sides.here["use"], ()))
    assert str(caught.value) == text.format(way_out)


def test_a_large_global_goes_beside_the_stream(sides: Sides) -> None:
    sides.run("def size(): return len(data.data)")
    sides.here["data"] = Array(bytearray(LARGE))
    for number in (1, 2):
        sides.here["data"].data[0] = number
        parcel = dump((sides.here["size"], ()))
        assert [len(buffer) for buffer in parcel.buffers] == [LARGE]
        bundle = ReceivedPickle(
            parcel.payload, [memoryview(buffer) for buffer in parcel.buffers]
        )
        assert sides.deliver(bundle) == LARGE
        assert sides.there["data"].data[0] == number


def test_too_large_a_global_is_too_large_for_this_thread(sides: Sides) -> None:
    sides.run("words = [str(n) for n in range(10_000)]\ndef look(): return len(words)")
    with pytest.raises(StreamTooLongError):
        dump((sides.here["look"], ()), limit=1000)
    assert sides.call("look") == 10_000


def test_what_the_import_defines_is_not_sent(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.run("""
LIMIT = 1
def add(x): return x + LIMIT
FACTOR = 3
def scale(x): return add(x) * FACTOR
""")
    own = frozenset(("LIMIT", "add"))
    monkeypatch.setattr(main_module._Known, "script", Script("", "/a", own, own))
    payload = dumps_call((sides.here["scale"], (1,)))
    loaded: list[object] = []

    class Imported(ModuleType):
        def __load__(self) -> None:
            loaded.append(self)
            exec("LIMIT = 10\ndef add(x): return x + LIMIT", sides.there)

    sides._there.__class__ = Imported
    assert sides.deliver(payload) == 33
    assert loaded


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
    assert not arrivals._coming
    sides.here["broken"] = 7
    assert sides.call("look") == 7


def test_what_needs_no_globals_is_not_wrapped(sides: Sides) -> None:
    sides.run("add = lambda x: x + 1")
    make: Callable[..., Any] = sides.here["add"]
    assert b"unpack" not in dumps_call((make, (1,)))
    assert sides.call("add", 1) == 2
    assert parcels.MAIN in dumps_call((make, (1,)))
