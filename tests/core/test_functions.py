"""Functions: by which number they travel, and what they are called."""

from __future__ import annotations

import functools
import gc
import inspect
import math
import operator
import pickle
import random
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings, strategies as st

from asyncpool._core import functions
from asyncpool._core.figures import FunctionTotals
from asyncpool._core.functions import Function, FunctionTable
from asyncpool._remote.client import RemoteFunctionTable
from asyncpool._wire import scripts
from asyncpool._wire.messages import MOST_REMEMBERED, FunctionCache
from asyncpool._wire.scripts import Script
from asyncpool._wire.text import MAX_NAME, function_name
from asyncpool._worker.api import call_chunk
from tests.core.specimens import LOCK, Counter, add
from tests.helpers import jobs, values

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
    "what is hidden by a decorator": inspect.unwrap(wrapped),
    "bound method": Counter(1).plus,
    "method of a list": [].append,
    "method of what cannot be pickled": LOCK.acquire,
    "descriptor of a method": str.split,
    "partial": functools.partial(add, 1),
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


# What a table must not do.


class Tracked:
    def __call__(self) -> None:
        pass

    def method(self) -> None:
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

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError(name)

    def __call__(self) -> None:
        pass

    def method(self) -> None:
        pass


class HostileProxy(list[int]):
    """As some proxies do that stand for nothing at the moment."""

    __eq__ = __ne__ = __hash__ = refuse  # type: ignore[assignment]
    __bool__ = __len__ = __repr__ = refuse
    __class__ = property(refuse)


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
    "method of a hostile object": lambda: types.MethodType(Hostile.method, Hostile()),
    "partial of a hostile object": lambda: functools.partial(Hostile()),
    "function of no module": lambda: changed(__module__=None),
    "function of a module that is missing": lambda: changed(__module__="no.such"),
    "function with a hostile self": lambda: changed(__self__=Hostile()),
    "function with unhashable constants": with_unhashable_constants,
    "method of a hostile proxy": lambda: HostileProxy().append,
}


@pytest.mark.parametrize("name", [*BY_VALUE, *HOSTILE])
def test_what_has_a_state_or_no_name_travels_with_each_call(name: str) -> None:
    table = FunctionTable(FunctionTotals())
    known = table.find(add)
    function = BY_VALUE.get(name) or HOSTILE[name]()
    found = table.find(function)
    assert (found.number, found.payload) == (0, b"")
    assert found is not known
    assert table.find(function) is found, "its traits are kept all the same"
    assert table.find(add) is known
    assert table.find(len).number == 2, "and it has used no number"


# How much is remembered.


@pytest.fixture(scope="module")
def crowd() -> Any:
    """A module of a thousand functions."""
    module: Any = types.ModuleType("tests_core_crowd")
    for number in range(1_000):
        exec(f"def f{number}(): return {number}", module.__dict__)
    sys.modules[module.__name__] = module
    yield [getattr(module, f"f{number}") for number in range(1_000)]
    del sys.modules[module.__name__]


def test_what_workers_have_forgotten_the_pool_knows(crowd: list[ANY]) -> None:
    table = FunctionTable(FunctionTotals())
    for _ in range(2):
        for function in crowd[: 2 * MOST_REMEMBERED]:
            table.find(function).traits.note(1e6)
    found = [table.find(function) for function in crowd[: 2 * MOST_REMEMBERED]]
    assert {each.traits.cost for each in found} == {1e6}
    assert [each.number for each in found] == list(range(1, 2 * MOST_REMEMBERED + 1))


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
        assert 0 < len(side.pool) <= MOST_REMEMBERED


# A client sends what lives in ``__main__`` by value.

SOURCE = """
FACTOR = 3

def work(x):
    return x * FACTOR
"""


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Have a ``__main__`` that the workers of this program can import."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(SOURCE, vars(module))
    own = frozenset(("FACTOR", "work"))
    scripts.know(Script("", "/script.py", own, own))
    yield vars(module)
    scripts.know(None)


def test_one_of_main_is_named_here_and_sent_abroad(main: dict[str, Any]) -> None:
    here, abroad = (
        FunctionTable(FunctionTotals()),
        RemoteFunctionTable(FunctionTotals()),
    )
    for _ in range(2):  # neither remembers what the other did
        known = here.find(main["work"])
        assert known.number == 1
        call = known.serializer.pack_job(main["work"], (2,), {}, number=known.number)
        assert isinstance(call, bytes)
        assert b"FACTOR" not in call
        known = abroad.find(main["work"])
        assert (known.number, known.payload) == (0, b"")
        call = known.serializer.pack_job(main["work"], (2,), {}, number=known.number)
        assert isinstance(call, bytes)
        assert b"FACTOR" in call
    assert scripts.script() is not None


# What functions are called.

HERE = __name__
SQUARE = "tests.helpers.jobs.square"


class Sly(str):
    __slots__ = ()

    def __format__(self, spec: str) -> NoReturn:
        raise SystemExit

    def __str__(self) -> NoReturn:
        raise SystemExit

    def isprintable(self) -> NoReturn:
        raise SystemExit


def with_name(name: Any, module: Any = "shop") -> Callable[[], None]:
    def function() -> None:
        pass

    function.__module__ = module
    function.__qualname__ = name
    return function


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (jobs.square, SQUARE),
        (pow, "builtins.pow"),
        (time.sleep, "time.sleep"),
        (int, "builtins.int"),
        ([].append, "list.append"),
        (str.upper, "str.upper"),
        (lambda: None, f"{HERE}.<lambda>"),
        (local_function(), f"{HERE}.local_function.<locals>.local"),
        (decorated(jobs.square), SQUARE),
        (cached, f"{HERE}.cached"),
        (functools.partial(functools.partial(jobs.square, 3), 4), SQUARE),
        (values.Point(1, 2).scaled, "tests.helpers.values.Point.scaled"),
        (values.Point.origin, "tests.helpers.values.Point.origin"),
        (values.Point(1, 2), "tests.helpers.values.Point"),
        (functools.partial(call_chunk, jobs.square), SQUARE),
        (functools.partial(call_chunk), "asyncpool._worker.api.call_chunk"),
        (with_name(Sly("sly")), "shop.sly"),
        (with_name("work", None), "work"),
        (with_name("work", 3), "work"),
        (with_name("two\nlines\x1b[2J"), "shop.two\\nlines\\x1b[2J"),
        (with_name("naïve\ud800"), "shop.naïve\\ud800"),
    ],
)
def test_a_function_is_called_what_it_is(function: Any, name: str) -> None:
    assert function_name(function) == name


def test_one_that_answers_for_its_attributes_is_not_asked() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> NoReturn:
            raise SystemExit(name)

    class Hostile(metaclass=Meta):
        def __getattribute__(self, name: str) -> NoReturn:
            raise SystemExit(name)

        def __call__(self) -> None:
            pass

    where = test_one_that_answers_for_its_attributes_is_not_asked.__qualname__
    name = f"{HERE}.{where}.<locals>.Hostile"
    assert function_name(Hostile()) == name
    assert function_name(Hostile) == f"{HERE}.{where}.<locals>.Meta"


@given(st.text(), st.text())
def test_every_name_is_printable_and_short(module: str, name: str) -> None:
    found = function_name(with_name(name, module))
    assert found.isprintable()
    assert 0 < len(found) <= MAX_NAME


@pytest.mark.parametrize("module", [ModuleType("ap_new")])
def test_a_reloaded_function_is_found(module: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "ap_new", module)
    exec(source := "def job(): return 1\ndef same(): pass", vars(module))
    table, job, same = FunctionTable(FunctionTotals()), module.job, module.same
    for function in (job, same, math.sqrt, lambda: None):
        table.find(function)
    assert table.reloaded() == []
    exec(source, vars(module))
    module.same = same
    assert table.reloaded() == [job]
    same.__code__ = job.__code__  # as an autoreloader does
    assert table.reloaded() == [job, same]
