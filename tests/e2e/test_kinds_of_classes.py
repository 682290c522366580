"""Classes of a script without a guard, in jobs: each kind is there what it is here."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.helpers.scripts import finish, start_script

# ``JOBS`` has calls, each with a name, whose results are the same here and in a worker.
RUN = """
import asyncpool

def outcome(call):
    try:
        found = call()
    except Exception as error:
        found = error
    # A class that came back is the one of this script, if it is here by that name.
    return repr(found), globals().get(type(found).__name__, type(found)) is type(found)

with asyncpool.ProcessPoolExecutor(1) as executor:
    for name, function, *args in JOBS:
        here = outcome(lambda: function(*args))
        for _ in range(2):  # the second time the worker has the class
            there = outcome(lambda: executor.submit(function, *args).result())
            print((name, here, there))
print(len(JOBS))
"""

NAMED_TUPLES = """
import typing

T = typing.TypeVar("T")

class Point(typing.NamedTuple):
    "A point."
    x: int
    y: int = 2

    def total(self):
        return self.x + self.y

    @classmethod
    def square(cls, x):
        return cls(x, x)

class Pair(typing.NamedTuple, typing.Generic[T]):
    first: T

class Near(Point):
    __slots__ = ()
    def total(self):
        return -super().total()

class Outer:
    class Inner(typing.NamedTuple):
        x: int

Other = typing.NamedTuple("Other", [("x", int)])

def about(point):
    made = Point(5), Point.square(3), point._replace(x=9), point._asdict()
    facts = Point._fields, Point._field_defaults, Point.__doc__, Point.__match_args__
    return made, facts, point.total(), hasattr(point, "__dict__")

def reads_it():
    Point
    return 1

def local():
    class Local(typing.NamedTuple):
        x: int
        def twice(self):
            return self.x * 2
    return Local(2)

JOBS = [
    ("about", about, Point(1)), ("only read", reads_it), ("new", lambda: Point(3)),
    ("generic", lambda pair: (pair, Pair[int](2), Pair.__parameters__), Pair(1)),
    ("inherited", lambda near: (near.total(), Near(3)), Near(1)),
    ("nested", lambda it: (it, Outer.Inner.__qualname__), Outer.Inner(1)),
    ("functional", lambda other: (other, Other(2)), Other(1)), ("local", local),
]
"""

DATACLASSES = """
import abc, dataclasses, typing

T = typing.TypeVar("T")

@dataclasses.dataclass
class Plain:
    x: int
    y: list = dataclasses.field(default_factory=list)

@dataclasses.dataclass(slots=True, frozen=True, kw_only=True, order=True)
class Frozen:
    x: int = 1

@dataclasses.dataclass(slots=True)
class Box(typing.Generic[T]):
    x: T

class Base(abc.ABC):
    __slots__ = ("x",)
    @abc.abstractmethod
    def run(self): ...

class Done(Base):
    __slots__ = ()
    def __init__(self): self.x = 1
    def run(self): return self.x

def about(it):
    return it, dataclasses.replace(it, x=5), hasattr(it, "__dict__")

def abstract(done):
    try:
        Base()
    except TypeError as error:
        return str(error), done.run(), isinstance(done, Base), hasattr(done, "__dict__")

JOBS = [("plain", about, Plain(1)), ("frozen", about, Frozen(x=2)), ("box", about, Box(1)),
        ("subscript", lambda: Box[int](2)), ("abstract", abstract, Done())]
"""

ENUMS = """
import enum

class Color(enum.Enum):
    RED = 1
    CRIMSON = 1
    BLUE = "b"

class Access(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = READ | WRITE

class Planet(enum.Enum):
    EARTH = (5.9, 6.3)
    MARS = (6.4, 3.3)
    def __init__(self, mass, radius): self.mass, self.radius = mass, radius

class Size(enum.Enum):
    S = 1, "small"
    def __new__(cls, value, label):
        made = object.__new__(cls)
        made._value_, made.label = value, label
        return made

class Operation(enum.Enum):
    NEG = enum.member(lambda x: -x)
    ONE = 1

class Word(enum.StrEnum):
    LOW = enum.auto()

class Holder:
    class Inside(enum.Enum):
        A = 1
        B = 1

def local():
    class Local(enum.Enum):
        A = 1
        B = 1
    return [Local.A.name, *Local.__members__]

JOBS = [
    ("members", lambda: (list(Color.__members__), Color.CRIMSON, Color["CRIMSON"])),
    ("argument", lambda color: (color, color is Color.CRIMSON), Color.RED),
    ("flags", lambda both: (list(Access.__members__), both is Access.BOTH), Access.BOTH),
    ("init", lambda: (Planet.MARS.radius, Planet((5.9, 6.3)))),
    ("new", lambda size: (size.label, Size(1), size), Size.S),
    ("member", lambda: (len(Operation), Operation.NEG.value(2))),
    ("word", lambda word: (word, word.upper()), Word.LOW),
    ("nested", lambda it: (it is Holder.Inside.B, it), Holder.Inside.A),
    ("local", local),
]
"""

TYPES = """
import typing

class Movie(typing.TypedDict, total=False):
    title: typing.Required[str]
    year: int

class Sequel(Movie):
    part: int

Params, Items = typing.ParamSpec("Params"), typing.TypeVarTuple("Items")
T = typing.TypeVar("T", bound=int)
UserId = typing.NewType("UserId", int)

class Callback(typing.Generic[Params, T]): pass
class Row(typing.Generic[*Items]): pass

@typing.runtime_checkable
class Runs(typing.Protocol):
    def run(self) -> int: ...

class Runner(Runs):
    def run(self): return 3

def user(number: UserId) -> "UserId":
    hints = typing.get_type_hints(user)
    return UserId(number), hints["number"] is UserId, UserId.__supertype__

JOBS = [
    ("keys", lambda: (sorted(Movie.__required_keys__), sorted(Sequel.__optional_keys__),
                      Sequel(title="a", part=2), sorted(Sequel.__annotations__))),
    ("parameters", lambda: (Callback.__parameters__, Row.__parameters__, Row[int, str])),
    ("protocol", lambda it: (it.run(), isinstance(it, Runs), isinstance(3, Runs)), Runner()),
    ("user", user, 3),
    ("types", lambda: (UserId, Params)),
]
"""

NEWER = """
import typing
from dataclasses import dataclass

class Box[T]:
    def __init__(self, x: T): self.x = x
    def __repr__(self): return f"Box({self.x})"

@dataclass(slots=True)
class Data[T](Box[T]):
    y: T = 0

class Pair[T](typing.NamedTuple):
    x: T

type Number = int | float
type Many[T] = list[T]

def first[T](numbers: Many[T]) -> T:
    return numbers[0]

JOBS = [
    ("box", lambda box: (box, Box[int](2), Box.__type_params__), Box(1)),
    ("data", lambda: Data[int](2).y),
    ("pair", lambda pair: (pair, Pair[int](2)), Pair(1)),
    ("alias", lambda: (Number, Number.__value__, Many)),
    ("first", first, [3]),
]
"""

HOOKS = """
REGISTRY, LOADED = {}, []

class Plugin:
    order = []
    def __init_subclass__(cls, *, key, **rest):
        super().__init_subclass__(**rest)
        cls.key = key
        REGISTRY[key] = cls
        Plugin.order.append(key)

class One(Plugin, key="one"):
    def run(self): return 1

class Two(One, key="two"):
    def run(self): return super().run() + 1

def find(key): return REGISTRY[key]().run(), sorted(REGISTRY), Plugin.order

def late():
    class Three(Plugin, key="three"): pass
    found = REGISTRY.pop("three").key, Plugin.order.pop()
    return found

def back():
    class Four(Plugin, key="four"):
        def run(self): return 4
    del REGISTRY["four"]
    Plugin.order.remove("four")
    return Four

class Meta(type):
    def __new__(meta, name, bases, namespace):
        LOADED.append(name)
        return super().__new__(meta, name, bases, namespace)

class Made(metaclass=Meta): pass

LIMIT = 4

class Revived:
    def __init__(self, x): self.x = x
    def __getstate__(self): return (self.x,)
    def __setstate__(self, state): self.x = min(state[0], LIMIT)

kept = Revived(3)

JOBS = [
    ("registry", find, "two"), ("argument", lambda it: it.run(), Two()), ("late", late),
    ("back", back), ("made", lambda made: type(made) is Made, Made()), ("revived", lambda: kept.x),
]
"""

DISPATCH = """
import functools

@functools.singledispatch
def kind(x): return "object"

@kind.register
def _(x: int): return "int"

class Thing:
    @functools.singledispatchmethod
    def kind(self, x): return "object"
    @kind.register
    def _(self, x: int | str): return "int or str"
    @functools.cached_property
    def area(self): return [1]
    @functools.lru_cache
    def known(self): return 5

@kind.register
def _(x: Thing): return "thing"

def inherited(x):
    class More(Thing): pass
    return kind(More()), kind(x)

JOBS = [
    ("function", kind, 1), ("other", kind, "a"), ("own class", kind, Thing()),
    ("in a function", inherited, True),
    ("method", lambda it: (it.kind(""), it.kind(1.5), it.area is it.area, it.known()), Thing()),
]
"""

EXCEPTIONS = """
import dataclasses

class OwnError(Exception):
    code = 3

class NeedsTwo(OwnError):
    def __init__(self, left, right):
        super().__init__(left)
        self.right = right

@dataclasses.dataclass(slots=True)
class Data(Exception):
    code: int

def fail(error):
    raise error

def catch():
    try:
        raise NeedsTwo(1, 2)
    except OwnError as error:
        return error.code, error.right

JOBS = [("own", fail, OwnError("a")), ("two", lambda: fail(NeedsTwo(1, 2))),
        ("data", lambda: fail(Data(5))), ("caught", catch)]
"""

since_3_12 = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12")


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(NAMED_TUPLES, id="named tuples"),
        pytest.param(DATACLASSES, id="dataclasses"),
        pytest.param(ENUMS, id="enums"),
        pytest.param(TYPES, id="types"),
        pytest.param(NEWER, id="newer", marks=since_3_12),
        pytest.param(HOOKS, id="hooks"),
        pytest.param(DISPATCH, id="dispatch"),
        pytest.param(EXCEPTIONS, id="exceptions"),
    ],
)
def test_a_class_is_in_jobs_what_it_is_here(tmp_path: Path, kinds: str) -> None:
    out, err = finish(start_script(tmp_path, kinds + RUN))
    assert err == ""
    *found, number = [ast.literal_eval(line) for line in out.splitlines()]
    assert len(found) == 2 * number
    assert [it for it in found if it[1] != it[2]] == []


AGAIN = """
import asyncio, sys, typing
import asyncpool

FIRST = '''
class Point(typing.NamedTuple):
    x: int
class Shape:
    def area(self): return 1
'''
SECOND = '''
class Point(typing.NamedTuple):
    x: int
    y: int = 5
class Shape:
    def area(self): return 2
'''

def use(point):
    return Point(1), point, type(point) is Point, Shape().area()

async def main():
    async with asyncpool.Pool(1) as pool:
        for cell in FIRST, SECOND, FIRST:
            exec(cell, globals())
            found = await pool.submit(use, Point(3))
            print(found, type(found[0]) is Point)

asyncio.run(main())
"""


def test_a_cell_that_runs_again_brings_its_new_classes(tmp_path: Path) -> None:
    process = start_script(tmp_path, AGAIN, from_stdin=True)
    out, err = finish(process, AGAIN)
    assert err == ""
    first = "(Point(x=1), Point(x=3), True, 1) True"
    second = "(Point(x=1, y=5), Point(x=3, y=5), True, 2) True"
    assert out.splitlines() == [first, second, first]


REFUSED = """
import traceback
import msgspec
import asyncpool

class Meta(type):
    def __new__(meta, name, bases, namespace, *, must):
        return super().__new__(meta, name, bases, namespace)

class Made(metaclass=Meta, must=1): pass
class Record(msgspec.Struct):
    x: int

with asyncpool.ProcessPoolExecutor(1) as executor:
    for function in lambda: Made(), lambda: Record(1):
        try:
            executor.submit(function).result()
        except Exception as error:
            print("".join(traceback.format_exception_only(error)))
    print(executor.submit(lambda: 3).result())
"""


def test_what_cannot_be_made_in_a_worker_is_named(tmp_path: Path) -> None:
    out, err = finish(start_script(tmp_path, REFUSED))
    assert err == ""
    way_out = (
        "put it into a module that the workers can import, or, if they are those of this script's "
        "own pool, give the script an `if __name__ == '__main__':` guard"
    )
    made, refused, other = out.split("\n\n")
    assert made == (
        "TypeError: Meta.__new__() missing 1 required keyword-only argument: 'must'\n"
        "The worker could not make 'Made' of __main__ from what came by value: "
        f"{way_out}"
    )
    assert refused == (
        "asyncpool.errors.JobNotPicklableError: fn cannot be pickled: <lambda>() needs "
        "the global 'Record', a StructMeta, which cannot be pickled (nobody can send a "
        "msgspec.Struct by value): put it into a module, or give the script an "
        "`if __name__ == '__main__':` guard\n"
        "It is the error of job 2 (__main__.<lambda>)."
    )
    assert other == "3\n"


GUARDED = """
import typing
import asyncpool

Params, UserId = typing.ParamSpec("Params"), typing.NewType("UserId", int)

class Point(typing.NamedTuple):
    x: int

def same(x):
    return x

if __name__ == "__main__":
    Late = typing.NewType("Late", int)
    class Local(Point):
        __slots__ = ()
    with asyncpool.ProcessPoolExecutor(1) as executor:
        for given in Params, UserId, Late, Point(1), Local(2):
            found = executor.submit(same, given).result()
            print(found is given or found == given and type(found) is type(given))
        print(executor.submit(lambda: (Params, Late, Local(3))).result())
"""


def test_a_script_with_a_guard_sends_what_its_import_defines_by_name(
    tmp_path: Path,
) -> None:
    out, err = finish(start_script(tmp_path, GUARDED))
    assert err == ""
    shown = "(~Params, __main__.Late, Local(x=3))"
    assert out.splitlines() == [*["True"] * 5, shown]
