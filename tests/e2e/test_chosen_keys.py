"""What a worker sends takes no long step in the service: keys that meet, and too many objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncpool import JobNotPicklableError, Pool, RemoteError
from asyncpool.enums import CrashKind
from tests.helpers import data_jobs
from tests.helpers.data_jobs import DICT, LIST, PUSH, parts
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

CHOSEN = "keys of a table were chosen for their hash"


@pytest.mark.parametrize(
    "function", [data_jobs.meet, data_jobs.meet_as_said, data_jobs.meet_in_a_list]
)
async def test_keys_that_were_chosen_to_meet_end_their_worker(
    function: Callable[[], Any],
) -> None:
    crashes: list[Any] = []
    async with (
        patience(),
        Pool(1, codec="msgspec", on_crash=crashes.append) as pool,
    ):
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(function)
        assert str(caught.value).startswith(
            "the job's outcome cannot be read, and its worker is killed: it sent the job's "
            f"result that is no msgspec: {CHOSEN}"
        )
        assert await pool.submit(data_jobs.echo, {1: {2, 3}}) == {1: {2, 3}}
    assert [crash.kind for crash in crashes] == [CrashKind.PROTOCOL]


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
        assert len(await pool.submit(data_jobs.give_lists, 150_000)) == 150_000
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(data_jobs.give_lists, 250_000)
        assert str(caught.value).startswith(
            "the job's result, of type list, cannot be sent as "
            f"{codec}: it holds more than 200,000 lists, dicts or others, or 5,000,000 values, "
            "which would hold up the service: send an array or bytes, or yield it in parts"
        )
        # A worker is trusted with what its service sends.
        many: list[list[int]] = [[]] * 250_000
        assert await pool.submit(len, many) == 250_000
        assert pool.stats().restarts == 0


async def test_the_limits_are_what_errors_and_documentation_say() -> None:
    async with patience(), Pool(1, codec="msgspec") as pool:
        # The list that has the others counts as well.
        assert len(await pool.submit(data_jobs.give_lists, 199_999)) == 199_999
        assert len(await pool.submit(data_jobs.give_ints, 5_000_000)) == 5_000_000
        for call in (
            pool.submit(data_jobs.give_lists, 200_000),
            pool.submit(data_jobs.give_ints, 5_000_001),
        ):
            with pytest.raises(
                JobNotPicklableError, match="200,000 lists, dicts or others"
            ):
                await call


async def test_half_as_many_are_sent_as_an_annotated_type() -> None:
    async with patience(), Pool(1, codec="msgspec") as pool:
        assert await pool.submit(data_jobs.give_rows, 60_000) == [[1]] * 60_000
        with pytest.raises(JobNotPicklableError, match="more than 100,000 lists"):
            await pool.submit(data_jobs.give_rows, 150_000)


FORMS = b"[" + b"{}," * 39_999 + b"{}]"
IDS = b"[" + b'"%032d",' % 7 * 2_999 + b'"%032d"]' % 7


@pytest.mark.parametrize(
    ("function", "payload", "why"),
    [
        (data_jobs.lie_of_forms, b"\x02\x00" + FORMS, "it is too long for one part"),
        (
            data_jobs.lie_of_forms,
            parts([PUSH, 40_000, LIST, 40_000], FORMS),
            (
                "with the defaults of its fields it holds more than 120,000 lists, dicts or others, "
                "which would hold up the service: yield it in parts"
            ),
        ),
        (
            data_jobs.lie_of_a_folder,
            parts(
                [PUSH, 1, PUSH, 15_000, LIST, 15_000, PUSH, 2, DICT, 4],
                b'["forms"]',
                FORMS[:45_000] + b"]",
                b'["ids",[]]',
            ),
            (
                "one Folder of more than 80,000 lists, dicts or others or 50,000 values would hold up "
                "the service: return a list of smaller ones, or yield it in parts"
            ),
        ),
        (
            data_jobs.lie_of_ids,
            parts([PUSH, 120_000, LIST, 120_000], *[IDS] * 40),
            (
                "it holds more than 66,666 lists, dicts or UUIDs, or 1,666,666 values, which would "
                "hold up the service: send an array or bytes, or yield it in parts"
            ),
        ),
    ],
)
async def test_what_an_annotation_makes_of_little_is_limited(
    function: Callable[[bytes], Any], payload: bytes, why: str
) -> None:
    crashes: list[Any] = []
    async with (
        patience(),
        Pool(1, codec="msgspec", on_crash=crashes.append) as pool,
    ):
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(function, payload)
        assert str(caught.value).endswith(
            f"it sent the job's result that is no msgspec: {why}"
        )
        assert await pool.submit(data_jobs.echo, 1) == 1
    assert [crash.kind for crash in crashes] == [CrashKind.PROTOCOL]


async def test_what_takes_long_as_its_type_is_not_sent() -> None:
    async with patience(), Pool(1, codec="msgspec") as pool:
        assert len(await pool.submit(data_jobs.give_forms, 16_000)) == 16_000
        found = await pool.submit(data_jobs.give_folder, 4_000, 20_000)
        assert (len(found.forms), found.ids[-1].int) == (4_000, 19_999)
        for forms, ids in ((14_000, 0), (0, 60_000)):
            with pytest.raises(JobNotPicklableError) as caught:
                await pool.submit(data_jobs.give_folder, forms, ids)
            assert str(caught.value) == (
                "the job's result, of type Folder, cannot be sent as msgspec: one Folder of more "
                "than 80,000 lists, dicts or others or 50,000 values would hold up the service: "
                "return a list of smaller ones, or yield it in parts - at `$`"
            )
        assert pool.stats().restarts == 0


@pytest.mark.parametrize("at", [0, 12_345, 29_999])
async def test_a_mismatch_in_a_large_result_says_where(at: int) -> None:
    async with patience(), Pool(1, codec="msgspec") as pool:
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(data_jobs.give_numbers, at)
        assert str(caught.value) == (
            "the job's result is not what the function's annotation says: Expected `int`, got "
            f"`str` - at `$[...][{at}][1]`"
        )
