"""Calls, values and errors of jobs, from one process to the other."""

from __future__ import annotations

import array
import copyreg
import functools
import itertools
import operator
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import FunctionType
from typing import Any, NoReturn

import numpy as np
import pytest
from tblib import pickling_support

from asyncpool._wire.buffers import HEAVY, OverLimitError
from asyncpool._wire.pickling import (
    format_error,
    load_error,
    load_job,
    load_value,
    pack_error,
    pack_job,
    pack_value,
    refuse,
    users_traceback,
)
from asyncpool._wire.text import users_own
from asyncpool.errors import JobNotPicklableError, JobRaisedError, RemoteTraceback
from tests.core import specimens
from tests.core.specimens import add
from tests.helpers.parcels import arrived, plain


def test_a_value_in_itself_and_a_very_deep_one() -> None:
    knot: list[object] = []
    knot.append(knot)
    assert load_value(plain(pack_value(knot)))[0][0] is not knot
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(JobNotPicklableError, match=r"deep recursion required\.$"):
        pack_value(deep)
    tried = itertools.count()
    hidden: object = threading.Lock()
    for _ in range(400):
        hidden = [hidden]
    with pytest.raises(JobNotPicklableError):
        refuse(Exception(), [("", hidden)], lambda it: pickle.dumps((next(tried), it)))
    assert next(tried) == 300


FAILS = specimens.FailsWhenLoaded, specimens.ExitsWhenLoaded
FAIL = [pickle.dumps(cls()) for cls in (*FAILS, specimens.InterruptsWhenLoaded)]


@pytest.mark.parametrize("payload", [b"", b"garbage", b"\x80\x05.", b"I17\n", *FAIL])
def test_a_result_that_cannot_be_loaded_is_the_jobs_own_failure(payload: bytes) -> None:
    with pytest.raises(
        JobNotPicklableError, match="cannot be unpickled here"
    ) as caught:
        load_value(payload)
    assert caught.value.direction == "result"


# What stalls a loop is found before it is copied.

LIMIT = 1_000
LONG = "x" * (LIMIT + 1)


class Box:
    """Has attributes, and counts how often anything like it is pickled."""

    pickled = 0

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        Box.pickled += 1
        return Box, (), self.__dict__


@pytest.mark.parametrize(
    "giant",
    [
        {"a": {"b": [LONG]}},
        [[[[1 << 8 * LIMIT]]]],
        array.array("b", bytes(LIMIT + 1)),
        np.zeros(4 * LIMIT, "u1")[::2],
        np.ma.masked_array(np.zeros(LIMIT), mask=False),
        np.zeros(LIMIT, "M8[ns]"),
        np.zeros(LIMIT, object),
        np.zeros(LIMIT).view(np.recarray),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_giant_is_found_at_once_wherever_it_is(giant: object) -> None:
    with pytest.raises(OverLimitError):
        pack_job(add, (1, [giant]), {}, number=1, limit=LIMIT)
    Box.pickled = 0  # nor what the second one of a class has
    with pytest.raises(OverLimitError):
        pack_job(add, (Box(a=1), Box(a=giant)), {}, number=1, limit=LIMIT)
    assert Box.pickled <= 2


def test_of_more_than_400_objects_none_is_pickled_in_vain() -> None:
    Box.pickled = 0
    payload = plain(pack_job(add, ([Box()] * 1_000,), {}, number=1, limit=HEAVY))
    assert (Box.pickled, len(load_job(arrived(payload), add)[1][0])) == (1, 1_000)
    Box.pickled = 0  # the class of all of them is the 400th
    pack_job(add, ([Box() for _ in range(399)],), {}, number=1, limit=HEAVY)
    assert Box.pickled == 399
    Box.pickled = 0
    with pytest.raises(OverLimitError):
        pack_job(add, ([Box() for _ in range(1_000)],), {}, number=1, limit=HEAVY)
    assert Box.pickled == 399


# Connections are numbers to pickle.


@pytest.fixture
def connection() -> Iterator[Connection]:
    one, other = Pipe()
    with one, other:
        yield one


@pytest.mark.parametrize(
    "pack",
    [
        lambda value: pack_job(print, ([value],), {}, number=1),
        lambda value: pack_job(print, (), {"to": value}, limit=1000),
        lambda value: pack_job(operator.methodcaller("f", value), (), {}),
        lambda value: pack_value((lambda: 1, value)),
    ],
    ids=["argument", "limited", "function", "by value"],
)
def test_a_connection_is_refused_and_named(
    pack: Callable[[object], object], connection: Connection
) -> None:
    with pytest.raises(JobNotPicklableError) as caught:
        pack(connection)
    assert f"cannot send {connection!r}, which is a descriptor" in str(caught.value)
    assert type(caught.value.__cause__) is TypeError
    assert not connection.closed


@pytest.mark.parametrize("cls", [ValueError, OSError])
def test_an_error_that_has_one_is_told_without_it(
    cls: type[Exception], connection: Connection
) -> None:
    """A copy of it, which is made to see whether it is good, would close the descriptor."""
    error: Any = load_error(pack_error(cls("lost", connection)))
    assert type(error) is JobNotPicklableError
    assert error.name == f"builtins.{cls.__name__}"
    assert connection.fileno() > 0
    connection.poll()


# Errors.


def execute(job: Callable[[], object]) -> bytes:
    try:
        run(job)
    except BaseException as error:  # noqa: BLE001 - as a worker does
        return pack_error(error)
    raise AssertionError("the job raised nothing")


def run(job: Callable[[], object]) -> None:
    job()


def arrive(error: BaseException) -> BaseException:
    """Raise *error* in a job and return what its caller gets."""

    def job() -> NoReturn:
        raise error

    return load_error(execute(job))


def text_of(error: BaseException) -> str:
    assert isinstance(error.__cause__, RemoteTraceback)
    return error.__cause__.text


@pytest.mark.parametrize(
    "error",
    [
        ValueError("wrong"),
        ValueError(),
        KeyError("missing"),
        ZeroDivisionError("division by zero"),
        ExceptionGroup("both", [ValueError("one"), KeyError("two")]),
        StopAsyncIteration("over"),
        SyntaxError("bad", ("file.py", 3, 7, "x = = 1")),
        specimens.NeedsTwo("a", "b"),
        specimens.NeedsKeyword(code=3),
        specimens.MakesItsMessage("of that"),
        specimens.AddsDefaults("failed", 3),
        specimens.SaysItItself(code=3),
        specimens.Frozen("cold", 3),
        specimens.NoModule(missing="numpy"),
        specimens.HostileReduce("but simple", 17),
        specimens.HostileReduceThatExits("but simple", 17),
        specimens.HostileReduceThatLies("I am this"),
        ExceptionGroup("both", [specimens.NeedsTwo("a", "b"), KeyError("two")]),
    ],
    ids=lambda error: type(error).__qualname__,
)
def test_an_exception_arrives_as_itself(error: Exception) -> None:
    twin = arrive(error)
    assert type(twin) is type(error)
    assert twin is not error
    assert str(twin) == str(error)
    assert repr(twin.args) == repr(error.args)
    assert vars(twin) == vars(error)
    assert isinstance(twin.__cause__, RemoteTraceback)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (specimens.HoldsALock("busy"), "busy"),
        (ValueError(specimens.LOCK), str(specimens.LOCK)),
        (specimens.HostileStr(specimens.LOCK), "<its __str__ raised RuntimeError>"),
        (specimens.HostileStrThatExits(), "<its __str__ raised SystemExit>"),
    ],
    ids=lambda item: type(item).__qualname__,
)
def test_what_cannot_be_pickled_is_named_and_quoted(
    error: Exception, text: str
) -> None:
    cls = type(error)
    twin = arrive(error)
    assert isinstance(twin, JobNotPicklableError)
    assert twin.name == f"{cls.__module__}.{cls.__qualname__}"
    assert (twin.text, twin.direction) == (text, "exception")
    assert str(twin) == f"the job raised {twin.name}, which cannot be pickled: {text}"
    assert cls.__qualname__ in text_of(twin)


@pytest.mark.parametrize("error", [specimens.Homesick, specimens.Changeling])
def test_what_cannot_be_unpickled_here_is_named_and_quoted(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def job() -> NoReturn:
        raise error("row 17\nrow 18: bad")

    payload = execute(job)
    monkeypatch.setitem(specimens.HOME, "here", False)
    twin = load_error(payload)
    assert isinstance(twin, JobNotPicklableError)
    assert twin.direction == "exception"
    assert twin.name == f"{error.__module__}.{error.__qualname__}"
    assert twin.text == "row 17\n    row 18: bad"
    assert "cannot be unpickled here" in str(twin)
    assert "row 18: bad" in text_of(twin)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"garbage",
        *map(pickle.dumps, (17, (b"", "Boo: far"), (1, 2, 3, 4))),
        pickle.dumps((b"", "text", "name", "message")),
        pickle.dumps((pickle.dumps(17), "text", "name", "message")),
        *FAIL,
    ],
)
def test_a_broken_payload_is_the_jobs_own_failure(payload: bytes) -> None:
    twin = load_error(payload)
    assert isinstance(twin, JobNotPicklableError)
    assert "cannot be unpickled here" in str(twin)


@pytest.mark.parametrize("with_tblib", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        FileNotFoundError(2, "no such file", "/a", None, "/b"),
        OSError(5, "i/o"),
        specimens.NoFile("/c"),
        StopIteration(4),
        ImportError("no", name="it"),
        BaseExceptionGroup("both", [SystemExit(1), ValueError("one")]),
    ],
    ids=lambda error: type(error).__qualname__,
)
def test_fields_are_kept(
    error: BaseException, *, with_tblib: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a program that imports Dask, where tblib pickles all exceptions."""
    if with_tblib:
        monkeypatch.setitem(
            copyreg.dispatch_table, type(error), pickling_support.pickle_exception
        )
    twin = load_error(pack_error(error))
    found = twin.exception if isinstance(twin, JobRaisedError) else twin
    assert (type(found), str(found)) == (type(error), str(error))
    for name in ("code", "value", "errno", "strerror", "filename", "filename2", "name"):
        assert getattr(found, name, None) == getattr(error, name, None)
    # What must not be raised in its caller is wrapped.
    wrapped = isinstance(error, StopIteration) or not isinstance(error, Exception)
    assert (found is not twin) is wrapped


def test_a_traceback_is_told_where_python_cannot_format_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may need a file, and there is no descriptor left."""

    def fail(*_: object) -> None:
        raise OSError("Too many open files")

    monkeypatch.setattr(traceback, "format_exception", fail)
    with pytest.raises(LookupError) as caught:
        run(lambda: {1: 2}[3])
    tb = caught.tb.tb_next
    assert tb is not None
    assert format_error(LookupError("nothing"), tb) == (
        "Traceback (most recent call last):\n"
        f'  File "{__file__}", line {tb.tb_lineno}, in run\n'
        f'  File "{__file__}", line {caught.tb.tb_lineno}, in <lambda>\n'
        "LookupError: nothing\n"
    )


# Their tracebacks, for somebody who has not written this package.


def test_they_begin_at_the_users_first_frame() -> None:
    ours = "asyncpool._worker.runner"
    for others in ("shop asyncio", "asyncio"):
        job: Any = functools.partial(int, "x")
        for module in reversed([ours, "asyncio", ours, *others.split()]):
            call = FunctionType(run.__code__, {"__name__": module})
            job = functools.partial(call, job)
        with pytest.raises(ValueError, match="invalid literal") as caught:
            job()
        error = caught.value.with_traceback(caught.tb.tb_next)
        frames = traceback.walk_tb(users_traceback(error))
        assert " ".join(it.f_globals["__name__"] for it, _ in frames) == others


CHAIN = """\
Traceback (most recent call last):
  File "/x/asyncpool/_cluster/serve.py", line 1, in serve
    one()
    ~~~^^
  File "<frozen importlib._bootstrap>", line 2, in two
  File "/home/me/asyncpool/app.py", line 3, in three
    three()
ValueError: one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/asyncpool/cluster/_servers/asgi.py", line 4, in four
    four()
KeyError: 'two'
"""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ('Traceback\n  File "/x/asyncpool/_worker/a.py", line 1\nE: e\n', ""),
        ('Traceback\n  File "/x/asyncpool/_sandbox/a.py", line 1\nE: e\n', ""),
        (
            CHAIN,
            """\
Traceback (most recent call last):
  File "/home/me/asyncpool/app.py", line 3, in three
    three()
ValueError: one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
KeyError: 'two'""",
        ),
        (
            """\
Traceback (most recent call last):
  File "/x/asyncpool/_cluster/serve.py", line 1, in find_object
    importlib.import_module(module)
  File "/home/me/app.py", line 1
    def app(:
            ^
SyntaxError: invalid syntax
""",
            """\
Traceback (most recent call last):
  File "/home/me/app.py", line 1
    def app(:
            ^
SyntaxError: invalid syntax""",
        ),
    ],
    ids=["nothing", "nothing of the user's", "a sandbox", "a chain", "no code"],
)
def test_a_traceback_has_the_users_frames(text: str, shown: str) -> None:
    assert users_own(text) == shown
