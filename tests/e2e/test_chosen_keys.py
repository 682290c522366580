"""What a worker sends takes no long step in the service: keys that meet, and too many objects."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from asyncpool import JobNotPicklableError, Pool, RemoteError
from asyncpool.enums import CrashKind
from tests.helpers import data_jobs
from tests.helpers.data_jobs import DICT, LIST, PUSH, TEXT, parts
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

CHOSEN = "keys of a table were chosen for their hash"


async def error_of_the_worker_killed_by(
    function: Callable[..., Any], *args: Any
) -> str:
    """Return the text of the job's error; the pool has lost nothing but that worker."""
    crashes: list[Any] = []
    hook = crashes.append
    async with patience(), Pool(1, codec="msgspec", on_crash=hook) as pool:
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(function, *args)
        assert await pool.submit(data_jobs.echo, {1: {2, 3}}) == {1: {2, 3}}
    assert [crash.kind for crash in crashes] == [CrashKind.PROTOCOL]
    return str(caught.value)


@pytest.mark.parametrize(
    "function", [data_jobs.meet, data_jobs.meet_as_said, data_jobs.meet_in_a_list]
)
async def test_keys_that_were_chosen_to_meet_end_their_worker(
    function: Callable[[], Any],
) -> None:
    text = await error_of_the_worker_killed_by(function)
    assert text.startswith(
        "the job's outcome cannot be read, and its worker is at fault: it sent the "
        f"job's result that is no msgspec: {CHOSEN}"
    )


async def test_nor_do_they_come_as_items_details_or_arguments_of_errors() -> None:
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
            found = await pool.submit(data_jobs.give_alone, value, count)
            assert found == [value] * count
        rows = await pool.submit(data_jobs.give_table, 19_999, 20)
        assert sum(map(len, rows)) == 399_980
        for call in (
            pool.submit(data_jobs.give_lists, 100_000),
            pool.submit(data_jobs.give_ints, 499_996),
            pool.submit(data_jobs.give_texts, 166_700),
            pool.submit(data_jobs.give_table, 20_000, 20),
            pool.submit(data_jobs.give_alone, math.inf, 126_000),
        ):
            with pytest.raises(
                JobNotPicklableError,
                match="cannot be sent as msgspec: it holds more than 500,000 values",
            ):
                await call
        with pytest.raises(JobNotPicklableError, match="its worker is at fault"):
            await pool.submit(data_jobs.send_instead, TABLE)


async def test_fewer_are_sent_as_an_annotated_type() -> None:
    async with patience(), Pool(1, codec="msgspec") as pool:
        assert await pool.submit(data_jobs.give_rows, 20_000) == [[1]] * 20_000
        with pytest.raises(JobNotPicklableError, match="more than 166,666 values"):
            await pool.submit(data_jobs.give_rows, 250_000)


# 199,000 lists of 24 texts, which the garbage collector looks at for some 0.3 s.
ROWS = b"[" + b",".join([b'["%d"%s]' % (7, b',"a"' * 23)] * 1000) + b"]"
TABLE = parts([PUSH, 199_000, LIST, 199_000], *[ROWS] * 199)

FORMS = b"[" + b"{}," * 39_999 + b"{}]"
IDS = b"[" + b'"%032d",' % 7 * 2_999 + b'"%032d"]' % 7


@pytest.mark.parametrize(
    ("function", "payload", "why"),
    [
        (data_jobs.lie_of_forms, b"\x02\x00" + FORMS, "it is too long for one part"),
        (
            data_jobs.lie_of_forms,
            parts([PUSH, 15_000, LIST, 15_000], FORMS[:45_000] + b"]"),
            (
                "with the defaults of its fields it holds more than 60,000 lists, dicts or others, "
                "which would hold up the service: yield it in parts"
            ),
        ),
        (
            data_jobs.lie_of_ids,
            parts([PUSH, 120_000, LIST, 120_000], *[IDS] * 40),
            (
                "it holds more than 166,666 values, of which each list, dict or UUID counts 5 more, "
                "which would hold up the service: send an array or bytes, or yield it in parts"
            ),
        ),
    ],
)
async def test_what_an_annotation_makes_of_little_is_limited(
    function: Callable[[bytes], Any], payload: bytes, why: str
) -> None:
    text = await error_of_the_worker_killed_by(function, payload)
    assert text.endswith(f"it sent the job's result that is no msgspec: {why}")


async def test_what_takes_long_as_its_type_is_not_sent() -> None:
    async with patience(), Pool(1, codec="msgspec") as pool:
        assert len(await pool.submit(data_jobs.give_forms, 4_000)) == 4_000
        found = await pool.submit(data_jobs.give_folder, 2_000, 10_000)
        assert (len(found.forms), found.ids[-1].int) == (2_000, 9_999)
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(data_jobs.give_diary, 60_000)
        assert str(caught.value) == (
            "the job's result, of type Diary, cannot be sent as msgspec: one Diary of more than "
            "50,000 values would hold up the service: return a list of smaller ones, or yield it in "
            "parts - at `$`"
        )
        assert pool.stats().restarts == 0


# A text of 2 MB, on a stack.
LONG = [PUSH, 20, TEXT, 20]
TEXTS = [b'["' + b"1" * 100_000 + b'"]'] * 20


@pytest.mark.parametrize(
    ("function", "payload", "kind"),
    [
        (
            data_jobs.lie_of_a_document,
            parts(
                [PUSH, 1, *LONG, PUSH, 4, DICT, 6],
                b'["kind"]',
                *TEXTS,
                b'["price","1","body",""]',
            ),
            "Document",
        ),
        (data_jobs.lie_of_choices, parts([*LONG, LIST, 1], *TEXTS), "Literal"),
        (data_jobs.lie_of_prices, parts([*LONG, LIST, 1], *TEXTS), "Decimal"),
        # Of one int of that size the service makes no decimal either.
        (
            data_jobs.lie_of_prices,
            parts([PUSH, 90, LIST, 90, LIST, 1], *[b"[" + b"9" * 4299 + b"]"] * 90),
            "Decimal",
        ),
    ],
)
async def test_a_type_looks_at_no_long_texts(
    function: Callable[[bytes], Any], payload: bytes, kind: str
) -> None:
    text = await error_of_the_worker_killed_by(function, payload)
    assert re.search(f"one {kind}.* whose decimals", text)


async def test_long_texts_of_other_fields_are_sent() -> None:
    async with patience(), Pool(1, codec="msgspec") as pool:
        found = await pool.submit(data_jobs.give_document, 2_000_000, 1000)
        assert (found.kind, len(found.body)) == (data_jobs.Kind.BILL, 2_000_000)
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(data_jobs.give_document, 1, 2_000_000)
        assert str(caught.value) == (
            "the job's result, of type Document, cannot be sent as msgspec: one Document whose "
            "decimals, enums, literals, tags and patterns have more than 1 MiB would hold up the "
            "service: annotate longer ones as str - at `$`"
        )
        assert pool.stats().restarts == 0


async def test_an_error_quotes_only_the_ends_of_a_long_text() -> None:
    text = b"\x02\x00" + b'{"kind":"' + b"x" * 100_000 + b'","price":"1","body":""}'
    async with patience(), Pool(1, codec="msgspec") as pool:
        with pytest.raises(JobNotPicklableError, match=r"at `\$.kind`") as caught:
            await pool.submit(data_jobs.lie_of_a_document, text)
        assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("at", [0, 12_345, 19_999])
async def test_a_mismatch_in_a_large_result_says_where(at: int) -> None:
    async with patience(), Pool(1, codec="msgspec") as pool:
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(data_jobs.give_numbers, at)
        assert str(caught.value) == (
            "the job's result is not what the function's annotation says: Expected `int`, got "
            f"`str` - at `$[...][{at}][1]`"
        )
