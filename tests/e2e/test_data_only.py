"""Pools with a codec: calls and outcomes are data, and nothing that a worker sends is unpickled."""

from __future__ import annotations

import asyncio
import itertools
import logging
import marshal
import math
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import cloudpickle
import numpy as np
import pytest

from asyncpool import Crash, Job, Pool
from asyncpool.enums import CrashKind
from asyncpool.errors import (
    JobNotPicklableError,
    RemoteError,
    RemoteTraceback,
    WorkerCrashedError,
)
from tests.helpers import data_jobs
from tests.helpers.data_jobs import (
    ARRAY,
    BUFFER,
    BYTES,
    CONTROLS,
    DICT,
    HOME,
    LIST,
    PUSH,
    SET,
    SHOWN,
    TEXT,
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
        found = await pool.submit(data_jobs.echo, np.zeros(200_000))
        assert found.base is None  # not a view of memory that the worker has too
        assert found.nbytes == 8 * 200_000


EVIL = b"cos\nsystem\n(S'true'\ntR."


NO_MESSAGES = [
    EVIL,
    b"",
    b"\x01",
    b"\x01\x00[1]",  # this pool has another codec
    b"\x01\x00" + b" " * 300_000,
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


async def test_errors_come_as_data_and_registered_ones_as_themselves() -> None:
    async with Pool(1, codec="json", errors=[StockError]) as pool:
        with pytest.raises(StockError) as stock:
            await pool.submit(data_jobs.sell, "tea", 3)
        assert (stock.value.item, stock.value.left) == ("tea", 3)
        assert stock.value.__notes__ == ["    The shop is closed."]
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
    # Python shows each note on lines of its own, and none of them looks like a record of a log.
    assert error.__notes__[0] == stock.value.__notes__[0] == f"    {SHOWN}"
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


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("codec", CODECS)
async def test_an_exception_whose_texts_or_arguments_cannot_be_sent_comes_all_the_same(
    codec: Any, concurrency: int
) -> None:
    functions: list[Any] = [data_jobs.raise_odd, data_jobs.raise_odd_later]
    odd = "surrogates", "long", "lists", "note"
    async with patience(), Pool(1, codec=codec, concurrency=concurrency) as pool:
        for function, what in itertools.product(functions, odd):
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
        # A local time that is there twice is refused.
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


# What a worker sends takes no long step in the service: keys that meet, and too many objects.
CHOSEN = "keys of a table were chosen for their hash"


def lies() -> Iterator[tuple[Callable[..., Any], tuple[Any, ...], str]]:
    """Yield functions whose worker is killed, their arguments, and why."""
    for function in (data_jobs.meet, data_jobs.meet_as_said, data_jobs.meet_in_a_list):
        yield function, (), f"^{CHOSEN}"
    # What an annotation makes of little.
    forms = b"[" + b"{}," * 39_999 + b"{}]"
    stacked = parts([PUSH, 15_000, LIST, 15_000], forms[:45_000] + b"]")
    ids = b"[" + b'"%032d",' % 7 * 2_999 + b'"%032d"]' % 7
    many = parts([PUSH, 120_000, LIST, 120_000], *[ids] * 40)
    lie: Callable[..., Any] = data_jobs.lie_of_forms
    yield lie, (b"\x02\x00" + forms,), "^it is too long for one part$"
    yield (
        lie,
        (stacked,),
        (
            "^with the defaults of its fields it holds more than 60,000 lists, dicts or "
            "others, which would hold up the service: yield it in parts$"
        ),
    )
    yield (
        data_jobs.lie_of_ids,
        (many,),
        (
            "^it holds more than 166,666 values, of which each list, dict or UUID counts 5 "
            "more, which would hold up the service: send an array or bytes, or yield it in "
            "parts$"
        ),
    )
    # A type that looks at long texts: of 2 MB, on a stack.
    long = [PUSH, 20, TEXT, 20]
    texts = [b'["' + b"1" * 100_000 + b'"]'] * 20
    document = parts(
        [PUSH, 1, *long, PUSH, 4, DICT, 6],
        b'["kind"]',
        *texts,
        b'["price","1","body",""]',
    )
    yield data_jobs.lie_of_a_document, (document,), "one Document.* whose decimals"
    alone = parts([*long, LIST, 1], *texts)
    yield data_jobs.lie_of_choices, (alone,), "one Literal.* whose decimals"
    yield data_jobs.lie_of_prices, (alone,), "one Decimal.* whose decimals"
    # Of one int of that size the service makes no decimal either.
    ints = parts([PUSH, 90, LIST, 90, LIST, 1], *[b"[" + b"9" * 4299 + b"]"] * 90)
    yield data_jobs.lie_of_prices, (ints,), "one Decimal.* whose decimals"
    # 199,000 lists of 24 texts, which the garbage collector looks at for some 0.3 s.
    rows = b"[" + b",".join([b'["%d"%s]' % (7, b',"a"' * 23)] * 1000) + b"]"
    table = parts([PUSH, 199_000, LIST, 199_000], *[rows] * 199)
    yield data_jobs.send_instead, (table,), "more than 500,000 values"


async def test_what_would_hold_up_the_service_ends_its_worker() -> None:
    crashes: list[Crash] = []
    pool = Pool(1, codec="msgspec", on_crash=crashes.append)
    every = list(lies())
    async with patience(2), pool:
        for function, args, why in every:
            with case(function, why):
                with pytest.raises(JobNotPicklableError) as caught:
                    await pool.submit(function, *args)
                start, _, told = str(caught.value).partition(" that is no msgspec: ")
                assert start == (
                    "the job's outcome cannot be read, and its worker is at fault: it sent "
                    "the job's result"
                )
                assert re.search(why, told)
                assert await pool.submit(data_jobs.echo, {1: {2, 3}}) == {1: {2, 3}}
    assert [crash.kind for crash in crashes] == [CrashKind.PROTOCOL] * len(every)


async def test_nor_does_it_come_as_items_details_or_arguments_of_errors() -> None:
    async with patience(), Pool(1, codec="msgspec") as pool:
        with pytest.raises(JobNotPicklableError, match=CHOSEN):
            async for _ in pool.stream(data_jobs.meet_in_a_stream):
                pass
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(data_jobs.beat, {1: 2})
        assert str(caught.value).endswith(
            "the details, of type dict, cannot be sent as json: a dict whose keys are not all "
            "str is no JSON - at `$`"
        )
        with pytest.raises(RemoteError) as remote:
            await pool.submit(data_jobs.meet_in_an_error)
        assert remote.value.args_sent is None
        for at in (0, 12_345, 19_999):
            with pytest.raises(JobNotPicklableError) as caught:
                await pool.submit(data_jobs.give_numbers, at)
            assert str(caught.value) == (
                "the job's result is not what the function's annotation says: Expected "
                f"`int`, got `str` - at `$[...][{at}][1]`"
            )
        # An error quotes only the ends of a long text.
        long = b"\x02\x00" + b'{"kind":"' + b"x" * 100_000 + b'","price":"1","body":""}'
        with pytest.raises(JobNotPicklableError, match=r"at `\$.kind`") as caught:
            await pool.submit(data_jobs.lie_of_a_document, long)
        assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("codec", ["json", "msgspec"])
async def test_more_objects_than_a_service_can_look_at_in_a_step_are_not_sent(
    codec: Any,
) -> None:
    async with patience(), Pool(1, codec=codec) as pool:
        assert len(await pool.submit(data_jobs.give_lists, 50_000)) == 50_000
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(data_jobs.give_lists, 250_000)
        assert str(caught.value).startswith(
            "the job's result, of type list, cannot be sent as "
            f"{codec}: it holds more than 500,000 values, of which each list, dict or other counts "
            "5 more, which would hold up the service: send an array or bytes, or yield it in parts"
        )
        # A worker is trusted with what its service sends.
        many: list[list[int]] = [[]] * 250_000
        assert await pool.submit(len, many) == 250_000
        assert pool.stats().restarts == 0


async def test_the_limit_is_one_for_all_that_a_message_holds() -> None:
    async with patience(), Pool(1, codec="msgspec") as pool:
        # The list that has the others counts as well.
        assert len(await pool.submit(data_jobs.give_lists, 99_999)) == 99_999
        assert len(await pool.submit(data_jobs.give_ints, 499_995)) == 499_995
        assert len(await pool.submit(data_jobs.give_texts, 165_000)) == 165_000
        for value, count in ((math.inf, 123_000), (b"1", 165_000), ((), 83_000)):
            alone = await pool.submit(data_jobs.give_alone, value, count)
            assert alone == [value] * count
        rows = await pool.submit(data_jobs.give_table, 19_999, 20)
        assert sum(map(len, rows)) == 399_980
        assert await pool.submit(data_jobs.give_rows, 20_000) == [[1]] * 20_000
        assert len(await pool.submit(data_jobs.give_forms, 4_000)) == 4_000
        folder = await pool.submit(data_jobs.give_folder, 2_000, 10_000)
        assert (len(folder.forms), folder.ids[-1].int) == (2_000, 9_999)
        found = await pool.submit(data_jobs.give_document, 2_000_000, 1000)
        assert (found.kind, len(found.body)) == (data_jobs.Kind.BILL, 2_000_000)
        too_many = "msgspec: it holds more than 500,000 values"
        for job, why in (
            (pool.submit(data_jobs.give_lists, 100_000), too_many),
            (pool.submit(data_jobs.give_ints, 499_996), too_many),
            (pool.submit(data_jobs.give_texts, 166_700), too_many),
            (pool.submit(data_jobs.give_table, 20_000, 20), too_many),
            (pool.submit(data_jobs.give_alone, math.inf, 126_000), too_many),
            # As an annotated type, fewer.
            (pool.submit(data_jobs.give_rows, 250_000), "more than 166,666 values"),
            (
                pool.submit(data_jobs.give_diary, 60_000),
                (
                    "^the job's result, of type Diary, cannot be sent as msgspec: one Diary of "
                    "more than 50,000 values would hold up the service: return a list of "
                    "smaller ones, or yield it in parts - at `\\$`"
                ),
            ),
            (
                pool.submit(data_jobs.give_document, 1, 2_000_000),
                (
                    "^the job's result, of type Document, cannot be sent as msgspec: one "
                    "Document whose decimals, enums, literals, tags and patterns have more than "
                    "1 MiB would hold up the service: annotate longer ones as str - at `\\$`"
                ),
            ),
        ):
            waited: Job[Any] = job
            with pytest.raises(JobNotPicklableError, match=why):
                await waited
        assert pool.stats().restarts == 0


# 199,000 lists of 24 texts, which the garbage collector looks at for some 0.3 s.
# A text of 2 MB, on a stack.
