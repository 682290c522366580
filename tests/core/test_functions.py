"""Tests of asyncpool/_core/pickling/functions.py."""

from __future__ import annotations

import functools
import gc
import inspect
import math
import operator
import pickle
import random
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, cast

import pytest
from hypothesis import given, settings, strategies as st

from asyncpool._core.base.job_traits import UNKNOWN
from asyncpool._core.figures.function_figures import FunctionTotals
from asyncpool._core.pickling import functions
from asyncpool._core.pickling.functions import (
    KNOWN,
    MEMORY,
    Function,
    FunctionCache,
    FunctionTable,
)
from tests.core.specimens import LOCK, Counter, add
from tests.helpers.functions import known_function

ANY = Callable[..., Any]


class Outer:
    class Inner:
        pass

    @staticmethod
    def helps(value: int) -> int:
        return value


class Callee:
    def __call__(self) -> None:
        pass


class Meta(type):
    pass


class MadeByMeta(metaclass=Meta):
    pass


@functools.lru_cache
def cached(value: int) -> int:
    return value


def decorated(function: ANY) -> ANY:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@decorated
def wrapped(value: int) -> int:
    return value


def local_function() -> ANY:
    def local() -> None:
        pass

    return local


def local_class() -> type:
    class Local:
        pass

    return Local


BY_REFERENCE: list[ANY] = [
    add,
    wrapped,
    Counter,
    Counter.plus,
    Outer.Inner,
    Outer.helps,
    math.factorial,
    len,
    operator.add,
    int,
    type,
    pickle.dumps,
    functools.partial,
]

BY_VALUE: dict[str, ANY] = {
    "lambda": lambda: None,
    "local function": local_function(),
    "local class": local_class(),
    "what is hidden by a decorator": inspect.unwrap(wrapped),
    "bound method": Counter(1).plus,
    "class method": Counter.fresh,
    "method of a list": [].append,
    "method of a dict": {}.get,
    "method of a text": "a b".split,
    "class method of a type": dict.fromkeys,
    "method of what cannot be pickled": LOCK.acquire,
    "slot of an object": (1).__add__,
    "descriptor of a method": str.split,
    "partial": functools.partial(add, 1),
    "partial of a partial": functools.partial(functools.partial(add, 1), 2),
    "partial of a method": functools.partial(Counter(1).plus, 1),
    "callable object": Callee(),
    "cache": cached,
    "method caller": operator.methodcaller("upper"),
    "class of a metaclass": MadeByMeta,
}


@pytest.mark.parametrize("function", BY_REFERENCE, ids=lambda f: f.__qualname__)
def test_what_has_a_name_of_its_own_gets_a_number(function: ANY) -> None:
    table = FunctionTable(FunctionTotals())
    found = table.find(function)
    assert found.number == 1
    assert pickle.loads(found.payload) is function
    assert table.find(function) is found


@pytest.mark.parametrize("name", BY_VALUE)
def test_what_has_a_state_or_no_name_travels_with_each_call(name: str) -> None:
    table = FunctionTable(FunctionTotals())
    found = table.find(BY_VALUE[name])
    assert (found.number, found.payload) == (0, b"")
    assert table.find(BY_VALUE[name]) is found, "its traits is kept all the same"
    assert table.find(add).number == 1, "and it has used no number"


def test_numbers_are_given_in_turn() -> None:
    table = FunctionTable(FunctionTotals())
    assert [table.find(function).number for function in BY_REFERENCE] == list(
        range(1, len(BY_REFERENCE) + 1)
    )
    assert [table.find(function).number for function in BY_REFERENCE] == list(
        range(1, len(BY_REFERENCE) + 1)
    )


def test_nothing_is_known_of_a_new_function() -> None:
    function = known_function(number=3, payload=b"payload")
    assert (function.number, function.payload) == (3, b"payload")
    assert function.traits.cost == UNKNOWN


def test_what_lives_in_main_travels_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def job(): pass\nclass Job: pass", names)
    for name in ("job", "Job"):
        monkeypatch.setattr(sys.modules["__main__"], name, names[name], raising=False)
        assert pickle.loads(pickle.dumps(names[name])) is names[name]
        assert FunctionTable(FunctionTotals()).find(names[name]).number == 0


def test_a_name_that_leads_to_something_else_by_now_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = sys.modules[add.__module__]
    monkeypatch.setattr(module, "add", math.factorial)
    assert FunctionTable(FunctionTotals()).find(add).number == 0
    monkeypatch.delattr(module, "add")
    assert FunctionTable(FunctionTotals()).find(add).number == 0


# Which calls are likely to take equally long.


def closure(value: object) -> ANY:
    return lambda: value


def test_what_is_made_of_the_same_code_has_one_profile() -> None:
    table = FunctionTable(FunctionTotals())
    found = table.find(closure(1))
    assert table.find(closure(2)) is found
    assert table.find(lambda: 1) is not found

    plus = table.find(Counter(1).plus)
    assert table.find(Counter(2).plus) is plus
    assert table.find(functools.partial(Counter(3).plus, 2)) is plus
    assert table.find(Counter.fresh) is not plus
    assert table.find(Counter.plus) is not plus, "which has a number"

    partial = table.find(functools.partial(add, 1))
    assert table.find(functools.partial(add, 2)) is partial
    assert table.find(functools.partial(math.factorial, 2)) is not partial
    assert table.find(add) is not partial


def test_code_is_known_by_its_place_and_its_name() -> None:
    def made(*, name: str = "job", line: int = 1, file: str = "<made>") -> ANY:
        names: dict[str, Any] = {"__name__": "made"}
        exec(compile("\n" * line + f"def {name}(): pass", file, "exec"), names)
        return cast("ANY", names[name])

    table = FunctionTable(FunctionTotals())
    found = table.find(made())
    assert found.number == 0, "there is no such module"
    assert table.find(made()) is found, "made again is the same"
    for other in (made(name="other"), made(line=2), made(file="<other>")):
        assert table.find(other) is not found


def test_objects_of_one_class_have_one_profile() -> None:
    class Other(Callee):
        pass

    table = FunctionTable(FunctionTotals())
    found = table.find(Callee())
    assert table.find(Callee()) is found
    assert table.find(Other()) is not found


# What a table must not do.


class Tracked:
    def __call__(self) -> None:
        pass

    def method(self) -> None:
        pass


class TrackedList(list[int]):
    pass


@pytest.mark.parametrize(
    "derive",
    [
        closure,
        lambda obj: obj,
        lambda obj: obj.method,
        lambda obj: functools.partial(add, obj),
        lambda obj: functools.partial(obj.method),
        functools.partial,
        lambda obj: functools.lru_cache(closure(obj)),
    ],
    ids=["closure", "object", "method", "partial", "of method", "of object", "cache"],
)
def test_no_state_is_kept_alive(derive: Callable[[Any], ANY]) -> None:
    table = FunctionTable(FunctionTotals())
    tracked = Tracked()
    function = derive(tracked)
    table.find(function)
    alive = weakref.ref(tracked)
    del function, tracked
    gc.collect()
    assert alive() is None


def test_no_local_function_or_class_or_list_is_kept_alive() -> None:
    table = FunctionTable(FunctionTotals())
    function, cls, numbers = local_function(), local_class(), TrackedList()
    alive: list[weakref.ref[Any]] = [
        weakref.ref(each) for each in (function, cls, numbers)
    ]
    table.find(function)
    table.find(cls)
    table.find(numbers.append)
    del function, cls, numbers
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3


def refuse(*args: object) -> NoReturn:
    raise RuntimeError("hands off")


class EqualToAll:
    def __call__(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(add)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> None:
        pass


class Hostile:
    """Refuses whatever one may ask of it, but to be called."""

    __eq__ = __ne__ = __hash__ = refuse
    __bool__ = __len__ = __repr__ = __reduce_ex__ = __dir__ = refuse
    __getattr__ = refuse
    __class__ = property(refuse)

    def __call__(self) -> None:
        pass

    def method(self) -> None:
        pass


class MoreHostile(Hostile):
    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError(name)


class HostileMeta(type):
    __eq__ = __ne__ = __hash__ = refuse
    __bool__ = __len__ = __repr__ = refuse
    __getattribute__ = refuse


class HostileClass(metaclass=HostileMeta):
    pass


class HostileList(list[int]):
    __eq__ = __ne__ = __hash__ = refuse  # type: ignore[assignment]
    __bool__ = __len__ = __repr__ = refuse


class HostileProxy(HostileList):
    """As some proxies do that stand for nothing at the moment."""

    __class__ = property(refuse)


class Refusal:
    def __get__(self, instance: object, owner: object) -> NoReturn:
        raise RuntimeError("hands off")


class RefusesItsSelf:
    __self__ = Refusal()


class HostileName(str):
    __slots__ = ()
    __contains__ = refuse


def changed(**attributes: Any) -> ANY:
    """Return a function with these attributes."""

    def function() -> None:
        pass

    function.__qualname__ = "function"
    for name, value in attributes.items():
        setattr(function, name, value)
    return function


def with_unhashable_constants() -> ANY:
    """Return what some tools make that rewrite code."""
    code = local_function().__code__
    return changed(__code__=code.replace(co_consts=(None, [])))


# Not as parameters: pytest would look at them.
HOSTILE: dict[str, Callable[[], Any]] = {
    "equal to all": EqualToAll,
    "unhashable": Unhashable,
    "hostile": Hostile,
    "more hostile": MoreHostile,
    "hostile class": lambda: HostileClass,
    "method of a function that is hostile": lambda: types.MethodType(Hostile(), 1),
    "method of a hostile object": lambda: types.MethodType(Hostile.method, Hostile()),
    "partial with a hostile argument": lambda: functools.partial(print, Hostile()),
    "partial of a hostile object": lambda: functools.partial(Hostile()),
    "method of a hostile list": lambda: HostileList().append,
    "no callable": lambda: 17,
    "nothing": lambda: None,
    "function of no module": lambda: changed(__module__=None),
    "function of a module that is missing": lambda: changed(__module__="no.such"),
    "function with a self": lambda: changed(__self__=Counter(1)),
    "function with a hostile self": lambda: changed(__self__=Hostile()),
    "function with a hostile name": lambda: changed(__qualname__=HostileName("f")),
    "function with unhashable constants": with_unhashable_constants,
    "method of a hostile proxy": lambda: HostileProxy().append,
    "class that refuses its self": lambda: RefusesItsSelf,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_callable_travels_with_each_call(name: str) -> None:
    table = FunctionTable(FunctionTotals())
    known = table.find(add)
    function = HOSTILE[name]()
    found = table.find(function)
    assert (found.number, found.payload) == (0, b"")
    assert found is not known
    assert table.find(function) is found
    assert table.find(add) is known


# How much is remembered.


@pytest.fixture(scope="module")
def crowd() -> Any:
    """A module of five thousand functions."""
    module: Any = types.ModuleType("tests_core_crowd")
    for number in range(5_000):
        exec(f"def f{number}(): return {number}", module.__dict__)
    sys.modules[module.__name__] = module
    yield [getattr(module, f"f{number}") for number in range(5_000)]
    del sys.modules[module.__name__]


def test_the_newest_are_remembered(crowd: list[ANY]) -> None:
    assert (MEMORY, KNOWN) == (256, 4096)
    table = FunctionTable(FunctionTotals())
    found = [table.find(function) for function in crowd[:KNOWN]]
    assert [table.find(function) for function in crowd[:KNOWN]] == found
    assert [each.number for each in found] == list(range(1, KNOWN + 1))

    newest = table.find(crowd[KNOWN])
    assert newest.number == KNOWN + 1
    rest = [table.find(function) for function in crowd[1 : KNOWN + 1]]
    assert rest == [*found[1:], newest], "only the oldest has gone"
    again = table.find(crowd[0])
    assert (again.number, again.traits.cost) == (KNOWN + 2, UNKNOWN)


def test_what_workers_have_forgotten_the_pool_knows(crowd: list[ANY]) -> None:
    table = FunctionTable(FunctionTotals())
    for _ in range(2):
        for function in crowd[: 2 * MEMORY]:
            table.find(function).traits.note(1e6)
    found = [table.find(function) for function in crowd[: 2 * MEMORY]]
    assert {each.traits.cost for each in found} == {1e6}
    assert [each.number for each in found] == list(range(1, 2 * MEMORY + 1))


def test_what_has_no_number_is_forgotten_as_well(crowd: list[ANY]) -> None:
    table = FunctionTable(FunctionTotals())
    found = table.find(Callee())
    for function in crowd[: KNOWN - 1]:
        table.find(function)
    assert table.find(Callee()) is found
    table.find(crowd[KNOWN])
    assert table.find(Callee()) is not found


def test_a_table_does_not_grow(crowd: list[ANY]) -> None:
    table = FunctionTable(FunctionTotals())
    for function in crowd:
        table.find(function)
        table.find(types.MethodType(function, 1))
    assert len(table._functions) == KNOWN


@settings(max_examples=10)
@given(st.integers(0), st.sampled_from([255, 256, 257, 300, 1000]))
def test_a_number_is_never_used_twice(
    crowd: list[ANY], seed: int, variety: int
) -> None:
    chance, table = random.Random(seed), FunctionTable(FunctionTotals())
    meaning: dict[int, ANY] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functions, "KNOWN", 256)
        for function in chance.choices(crowd[:variety], k=2_000):
            number = table.find(function).number
            assert meaning.setdefault(number, function) is function
    assert sorted(meaning) == list(range(1, len(meaning) + 1))


def test_a_memory_forgets_the_oldest() -> None:
    memory = FunctionCache()
    for number in range(1, MEMORY + 1):
        memory.add(number, str(number))
    assert list(memory.items()) == [(n, str(n)) for n in range(1, MEMORY + 1)]
    memory.add(1000)
    assert list(memory) == [*range(2, MEMORY + 1), 1000]
    assert memory[1000] is None
    memory[2] = "looked up"  # which makes it no newer
    memory.add(1001)
    assert list(memory) == [*range(3, MEMORY + 1), 1000, 1001]


class Side:
    """Both ends of one job channel, which keeps the order of what is sent."""

    def __init__(self) -> None:
        self.pool, self.worker = FunctionCache(), FunctionCache()
        self.channel: list[tuple[int, bytes]] = []
        self.meant: list[ANY] = []

    def send(self, known: Function, function: ANY) -> None:
        if known.number not in self.pool:
            self.pool.add(known.number)
            self.channel.append((known.number, known.payload))
        self.channel.append((known.number, b""))
        self.meant.append(function)

    def receive(self) -> list[ANY]:
        """Return what is called, in this order."""
        called = []
        for number, payload in self.channel:
            if payload:
                self.worker.add(number, payload)
                continue
            if type(self.worker[number]) is bytes:
                self.worker[number] = pickle.loads(self.worker[number])
            called.append(self.worker[number])
        self.channel.clear()
        return called


@settings(max_examples=10)
@given(st.integers(0), st.sampled_from([256, 257, 300, 1000]))
def test_a_worker_calls_what_was_meant(
    crowd: list[ANY], seed: int, variety: int
) -> None:
    chance, table = random.Random(seed), FunctionTable(FunctionTotals())
    sides = [Side(), Side(), Side()]
    queue: list[tuple[Function, ANY]] = []
    for function in chance.choices(crowd[:variety], k=3_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(functions, "KNOWN", 256)
            queue.append((table.find(function), function))
        # A job may wait, also until the table knows its function by another number.
        if chance.random() < 0.8:
            job = queue.pop(chance.randrange(len(queue)))
            chance.choice(sides).send(*job)
    for side in sides:
        assert side.receive() == side.meant
        assert list(side.pool) == list(side.worker)
        assert 0 < len(side.pool) <= MEMORY
