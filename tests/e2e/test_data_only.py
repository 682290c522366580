"""Pools with a codec: calls and outcomes are data, and nothing that a worker sends is unpickled."""

from __future__ import annotations

import asyncio
import logging
import marshal
import pickle
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import cloudpickle
import numpy as np
import pytest

from asyncpool import (
    JobNotPicklableError,
    Pool,
    RemoteError,
    RemoteTraceback,
    WorkerCrashedError,
)
from asyncpool.enums import CrashKind
from tests.helpers import data_jobs
from tests.helpers.data_jobs import (
    ARRAY,
    BUFFER,
    BYTES,
    CONTROLS,
    HOME,
    LIST,
    PUSH,
    SET,
    SHOWN,
    Order,
    Reversed,
    StockError,
    parts,
)
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import case

pytestmark = BOTH_LOOPS

CODECS = ["json", "msgspec"]
CONTROL_CHARACTERS = set(CONTROLS) - set("]0;owned\n")

PLAIN: list[Any] = [
    None,
    True,
    1.5,
    2**64,
    -(2**200),
    "\u20ac",
    [None, {"deep": [[1]], "": {}}],
]

# Values that JSON changes, or has no place for.
ODD: list[Any] = [
    *PLAIN,
    float("inf"),
    (1, (2, [3])),
    {1, 2},
    frozenset(("a",)),
    {1: "one", (2, 3): "pair", None: "none", "$tuple": [1]},
    {"$tuple": [1]},
    b"\x00\xff",
    bytearray(b"ab"),
    [None, {"deep": [(1,)]}],
]


@pytest.fixture
def no_unpickling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function after whose call nothing in this process can be unpickled."""
    load_code = marshal.loads

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("something was unpickled")

    def loads(*args: Any) -> Any:
        # Imports read the bytecode of this process's own files.
        if sys._getframe(1).f_code.co_filename.startswith("<frozen importlib"):
            return load_code(*args)
        return refuse()

    def begin() -> None:
        for module, names in {
            pickle: ("load", "loads", "Unpickler", "_Unpickler", "_loads", "_load"),
            cloudpickle: ("load", "loads"),
            marshal: ("load",),
        }.items():
            for name in names:
                monkeypatch.setattr(module, name, refuse)
        monkeypatch.setattr(marshal, "loads", loads)
        with pytest.raises(AssertionError, match="something was unpickled"):
            pickle.loads(b"N.")

    yield begin
    monkeypatch.undo()


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("codec", CODECS)
async def test_all_that_a_pool_does_works_where_nothing_can_be_unpickled(
    codec: Any, concurrency: int, no_unpickling: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with Pool(2, codec=codec, concurrency=concurrency) as pool:
        no_unpickling()
        for value in ODD if codec == "msgspec" else PLAIN:
            found = await pool.submit(data_jobs.echo, value)
            assert (found, type(found)) == (value, type(value))
        assert await pool.submit(data_jobs.echo_later, value=[[1, 2]]) == [[1, 2]]
        with pytest.raises(RemoteError, match=r"builtins\.ValueError: no"):
            await pool.submit(data_jobs.raise_value_error, "no")
        values = [[n, "x"] for n in range(20)]
        assert [x async for x in pool.map(data_jobs.echo, values)] == values
        found = [x async for x in pool.stream(data_jobs.count_to, 3)]
        assert found == [[0, ""], [1, "x"], [2, "xx"]]
        found = [x async for x in pool.stream(data_jobs.count_later, 2)]
        assert found == [{"number": 0}, {"number": 1}]
        job = pool.submit(data_jobs.beat, {"at": [1, 2]})
        assert [details async for details in job.progress()] == [{"at": [1, 2]}]
        assert await job == f"{HOME}.beat"
        again = pool.options(max_attempts=2).submit(data_jobs.last_details, [1, "x"])
        assert await again == [1, "x"]
        assert await pool.broadcast(data_jobs.echo, [5]) == {0: [5], 1: [5]}
        async with pool.worker() as worker:
            assert await worker.submit(data_jobs.echo, [1]) == [1]
        with caplog.at_level(logging.WARNING):
            await pool.submit(data_jobs.log, "hello")
        with pytest.raises(WorkerCrashedError):
            await pool.submit(data_jobs.die)
        assert "it says hello" in caplog.text
        # The worker that came in its place has run the broadcast at its start.
        found = await pool.broadcast(data_jobs.echo, 6)
        assert [*found.values()] == [6, 6]
        large: Any = [{"number": n, "text": "x" * 90} for n in range(30_000)]
        assert await pool.submit(data_jobs.echo, large) == large
        if codec == "json":
            return
        large = b"x" * 3_000_000
        assert await pool.submit(data_jobs.echo, large) == large
        array = np.arange(300_000.0).reshape(300, 1000).T
        found = await pool.submit(data_jobs.echo, [array, array[::2], array[:2, 0]])
        assert [one.tolist() for one in found] == [
            array.tolist(),
            array[::2].tolist(),
            array[:2, 0].tolist(),
        ]
        found[0][0, 0] = 7  # it is the caller's own


EVIL = b"cos\nsystem\n(S'true'\ntR."


NO_MESSAGES = [
    EVIL,
    b"",
    b"\x01",
    b"\x01\x00[1]",  # this pool has another codec
    b"\x02\x02[1]",
    b"\x02\x00",
    b"\x02\x00[1",
    b"\x02\x00" + b"[" * 100_000,
    b"\x02\x01",
    b"\x02\x01" + b"\xff" * 30,
    parts([]),
    parts([PUSH, 2], b"[1]"),  # values that are not there
    parts([PUSH, 1], b"[1,2]"),  # and one too many
    parts([PUSH, 1], b"1"),
    parts([LIST, 1]),
    parts([LIST, -1]),
    parts([LIST]),
    parts([LIST, 0] + [LIST, 1] * 2000),  # a list in a list in a list
    parts([99, 0]),
    parts([BYTES, 1]),
    parts([BUFFER, 0]),  # a buffer that has not come
    parts([LIST, 0, SET, 1]),  # a list in a set
    parts([PUSH, 1, ARRAY, 1], b"[1]"),
    parts([PUSH, 1, BYTES, 0, ARRAY, 2], b'[["|O8",[1],"C"]]'),  # an array of objects
    parts([PUSH, 1, BYTES, 0, ARRAY, 2], b'[["<f8",[1],"C"]]'),
    parts([PUSH, 1], b"[" + b" " * 200_000 + b"1]"),
]


@pytest.mark.parametrize("what", ["pack_value", "pack_error"])
async def test_what_is_no_message_ends_its_worker_as_protocol_and_no_other_job(
    what: str,
) -> None:
    crashes: list[Any] = []
    async with patience(), Pool(1, codec="msgspec", on_crash=crashes.append) as pool:
        for payload in NO_MESSAGES:
            with case(payload[:100]):
                with pytest.raises(JobNotPicklableError) as caught:
                    await pool.submit(data_jobs.send_instead, payload, what)
                text = "cannot be read, and its worker is at fault: it sent"
                assert text in str(caught.value)
                assert await pool.submit(data_jobs.echo, (1,)) == (1,)
    kinds = [crash.kind for crash in crashes]
    assert kinds == [CrashKind.PROTOCOL] * len(NO_MESSAGES)


async def test_a_message_in_another_codec_is_not_read_even_if_it_is_large() -> None:
    crashes: list[Any] = []
    async with Pool(1, codec="msgspec", on_crash=crashes.append) as pool:
        with pytest.raises(JobNotPicklableError, match="its worker is at fault"):
            await pool.submit(data_jobs.send_instead, b"\x01\x00" + b" " * 300_000)
        assert await pool.submit(data_jobs.echo, 1) == 1
    assert [crash.kind for crash in crashes] == [CrashKind.PROTOCOL]


async def test_errors_come_as_data_and_registered_ones_as_themselves() -> None:
    async with Pool(1, codec="json", errors=[StockError]) as pool:
        with pytest.raises(StockError) as stock:
            await pool.submit(data_jobs.sell, "tea", 3)
        assert (stock.value.item, stock.value.left) == ("tea", 3)
        assert stock.value.__notes__ == ["The shop is closed."]
        assert isinstance(stock.value.__cause__, RemoteTraceback)
        with pytest.raises(RemoteError) as remote:
            await pool.submit(data_jobs.raise_value_error, "no")
    error = remote.value
    assert (error.type_name, error.text) == ("builtins.ValueError", "no")
    assert (error.args_sent, error.job_id) == (("no",), 2)
    assert "in raise_value_error" in error.traceback
    assert "in raise_value_error" in str(error.__cause__)


@pytest.mark.parametrize("codec", CODECS)
async def test_the_texts_of_an_exception_control_no_terminal(codec: Any) -> None:
    async with Pool(1, codec=codec, errors=[StockError]) as pool:
        with pytest.raises(RemoteError) as remote:
            await pool.submit(data_jobs.raise_controls)
        with pytest.raises(StockError) as stock:
            await pool.submit(data_jobs.raise_controls, registered=True)
    error = remote.value
    assert (error.text, error.args_sent) == (SHOWN, (CONTROLS,))
    assert error.__notes__[0] == stock.value.__notes__[0] == SHOWN
    for text in (str(error), error.traceback, str(error.__cause__)):
        assert SHOWN in text
        assert not CONTROL_CHARACTERS & set(text)
    # What was made anew has the arguments of the job.
    assert stock.value.item == CONTROLS
    assert not CONTROL_CHARACTERS & set(str(stock.value.__cause__))


async def test_nor_does_a_traceback_that_comes_with_a_pickle() -> None:
    async with Pool(1) as pool:
        with pytest.raises(ValueError, match="owned") as caught:
            await pool.submit(data_jobs.raise_controls)
        with pytest.raises(JobNotPicklableError) as substitute:
            await pool.submit(data_jobs.raise_unpicklable)
    assert caught.value.args == (CONTROLS,)
    for text in (str(caught.value.__cause__), str(substitute.value)):
        assert SHOWN in text
        assert not CONTROL_CHARACTERS & set(text)


@pytest.mark.parametrize("function", [data_jobs.raise_odd, data_jobs.raise_odd_later])
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("codec", CODECS)
async def test_an_exception_whose_texts_or_arguments_cannot_be_sent_comes_all_the_same(
    codec: Any, concurrency: int, function: Any
) -> None:
    async with patience(), Pool(1, codec=codec, concurrency=concurrency) as pool:
        for what in ("surrogates", "long", "lists", "note"):
            with pytest.raises(RemoteError) as caught:
                await pool.submit(function, what)
            assert caught.value.type_name == "builtins.ValueError"
        assert await pool.submit(data_jobs.echo, 1) == 1
        assert pool.stats().restarts == 0


async def test_annotations_say_what_arguments_and_results_are() -> None:
    async with Pool(1, codec="msgspec") as pool:
        assert await pool.submit(data_jobs.count_pages, Order("a", [1, 2])) == 3
        made = await pool.submit(data_jobs.make_order, "b", count=2)
        assert made == Order("b", [0, 1])
        assert await pool.submit(data_jobs.add, 1, 2, 3, scale=2, more=4) == 20
        wrong: Any = [1, 2, 3, "four"]
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(data_jobs.count_pages, Order("a", wrong))
        assert str(caught.value) == (
            "args[0] cannot be read: Expected `int`, got `str` - at `$.args[0].pages[3]`"
        )
        assert (caught.value.direction, caught.value.name) == ("arguments", "args[0]")
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(data_jobs.lie, "text")
        assert str(caught.value) == (
            "the job's result is not what the function's annotation says: Expected `int`, "
            "got `str` - at `$`"
        )
        assert await pool.submit(data_jobs.lie, 3) == 3  # the worker lives on


async def test_a_local_time_that_is_there_twice_is_refused() -> None:
    async with Pool(1, codec="msgspec") as pool:
        first = datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001 - so that it is there twice
        second = first.replace(fold=1)
        aware = second.replace(tzinfo=ZoneInfo("Europe/Berlin"))
        found = await pool.submit(data_jobs.give_times, [first, aware])
        assert found["0"] == first
        assert found["1"].utcoffset() == aware.utcoffset()
        why = (
            "datetime.datetime(2026, 10, 25, 2, 30, fold=1) would come back with fold=0, another "
            "instant: send an aware one - at `$"
        )
        for call in (
            pool.submit(data_jobs.give_times, [first, second]),
            pool.submit(data_jobs.give_second_time),
        ):
            with pytest.raises(JobNotPicklableError) as caught:
                await call
            assert why in str(caught.value)


async def test_what_is_no_data_is_refused_before_it_is_sent_and_says_where() -> None:
    async with Pool(1, codec="json") as pool:
        for value, why in {
            "complex is no JSON - at `$.args[0].a[1]`": {"a": [1, 2j]},
            "nan is no JSON - at `$.args[0][1]`": [1.0, float("nan")],
            "numpy.ndarray is no JSON - at `$.args[0]`": np.arange(3),
            "tests.helpers.data_jobs.Order is no JSON": [Order("a", [])],
            "tuple is no JSON, and would come back as a list: send a list": [(1, 2)],
            "a dict whose keys are not all str is no JSON": {1: 2},
            "bytes is no JSON": b"x",
            "set is no JSON": {1},
        }.items():
            with pytest.raises(JobNotPicklableError) as caught:
                await pool.submit(data_jobs.echo, why)
            assert value in str(caught.value)
        cycle: list[Any] = []
        cycle.append(cycle)
        with pytest.raises(JobNotPicklableError, match="nested too deeply, or holds"):
            await pool.submit(data_jobs.echo, cycle)
        with pytest.raises(
            JobNotPicklableError, match="the job's result, of type Order"
        ):
            await pool.submit(data_jobs.make_order, "b", 2)
        assert pool.stats().restarts == 0


async def test_functions_travel_by_name_or_not_at_all() -> None:
    def local() -> None: ...

    async with Pool(1, codec="json", functions=[data_jobs.echo]) as pool:
        assert await pool.submit(data_jobs.echo, 1) == 1
        cases: dict[Any, str] = {
            (lambda: 1): "is a lambda: use a function of a module",
            local: "is local to a function: use a function of a module",
            [].append: "list.append is an object of a builtin_function_or_method",
            data_jobs.add: f"{HOME}:add is not among the functions of this pool",
        }
        for function, why in cases.items():
            with pytest.raises(JobNotPicklableError) as caught:
                await pool.submit(function)
            assert str(caught.value).startswith(
                "fn cannot be sent by its name, as this"
            )
            assert why in str(caught.value)
            assert caught.value.name == "fn"
        with pytest.raises(JobNotPicklableError, match="not among the functions"):
            await pool.broadcast(data_jobs.add, 1)
    async with Pool(1, codec="json", functions=[f"{HOME}:*"]) as pool:
        assert await pool.submit(data_jobs.add, 1, 2) == 3


async def test_a_codec_of_the_users_is_asked_for_each_argument() -> None:
    async with Pool(1, codec=Reversed()) as pool:
        assert await pool.submit(data_jobs.echo, (1, {2})) == (1, {2})
        assert await pool.submit(data_jobs.add, 1, 2, scale=3) == 9
        large = "x" * 1_000_000
        assert await pool.submit(data_jobs.echo, value=large) == large
        with pytest.raises(
            JobNotPicklableError, match=r"args\[1\] cannot be read: Value"
        ):
            await pool.submit(data_jobs.add, 1, "2")  # type: ignore[call-overload]
        with pytest.raises(JobNotPicklableError, match="'text' is no int"):
            await pool.submit(data_jobs.lie, "text")


async def test_a_view_may_have_another_codec_in_a_pool_that_has_one() -> None:
    async with Pool(1, codec="json") as pool:
        view = pool.options(codec="msgspec")
        assert await view.submit(data_jobs.count_pages, Order("a", [1])) == 1
        jobs = [
            each.submit(data_jobs.echo, [n]) for n in range(9) for each in (pool, view)
        ]
        assert await asyncio.gather(*jobs) == [[n] for n in range(9) for _ in range(2)]
        with pytest.raises(
            ValueError, match="codec must be 'json', 'msgspec' or a Codec"
        ):
            pool.options(codec="pickle")
        for number in range(40):
            view = pool.options(codec=Reversed())  # one that no other view has
            assert await view.submit(data_jobs.echo, number) == number
    with pytest.raises(
        ValueError, match="codec is an option of jobs in a pool that has"
    ):
        Pool(1).options(codec="json")


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        ({"codec": "pickle"}, ValueError, "codec must be 'json', 'msgspec' or a Codec"),
        ({"codec": 3}, TypeError, "an object with name, encode"),
        ({"codec": Reversed}, TypeError, "an object with name, encode"),
        ({"errors": [KeyError]}, ValueError, "errors is for pools with a codec"),
        ({"functions": ["a:b"]}, ValueError, "functions is for pools with a codec"),
        (
            {"codec": "json", "functions": ["a"]},
            ValueError,
            "functions takes functions",
        ),
        ({"codec": "json", "errors": [3]}, TypeError, "errors takes classes"),
        (
            {"codec": "json", "initializer": lambda: None},
            JobNotPicklableError,
            "initializer cannot be sent by its name",
        ),
    ],
)
async def test_what_a_pool_with_a_codec_cannot_have_is_refused_at_once(
    wrong: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        Pool(1, **wrong)


async def test_a_worker_that_changes_a_buffer_after_it_was_sent_changes_no_result() -> (
    None
):
    async with Pool(1, codec="msgspec") as pool:
        found = await pool.submit(data_jobs.echo, np.zeros(200_000))
        assert found.base is None  # not a view of memory that the worker has too
        assert found.nbytes == 8 * 200_000
