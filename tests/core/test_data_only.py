"""The service's half of a pool that is data only."""

from __future__ import annotations

import pytest

from asyncpool._core.codec.data_only import DataFunctionTable, DataOnly
from asyncpool._core.codec.formats import format_of
from asyncpool._core.figures.function_figures import FunctionTotals
from asyncpool._core.pickling.out_of_band import ReceivedPickle
from asyncpool.errors import JobNotPicklableError
from tests.helpers.data_jobs import add, echo

JSON, MSGSPEC = format_of("json"), format_of("msgspec")


def test_tables_of_one_pool_share_their_numbers() -> None:
    data, totals = DataOnly(JSON), FunctionTotals()
    first = DataFunctionTable(totals, data, JSON)
    second = DataFunctionTable(totals, data, MSGSPEC, first)
    numbers = [table.find(f).number for f in (echo, add) for table in (first, second)]
    assert numbers == [1, 2, 3, 4]
    assert second.find(echo) is second.find(echo)


def test_a_function_without_a_name_has_no_number_and_is_refused() -> None:
    table = DataFunctionTable(FunctionTotals(), DataOnly(JSON), JSON)
    known = table.find(lambda: None)
    assert known.number == 0
    with pytest.raises(JobNotPicklableError, match="is a lambda"):
        known.serializer.pack_job(lambda: None, (), {}, number=0)


def test_what_came_beside_a_message_is_heavy() -> None:
    serializer = DataOnly(JSON).serializer_of(echo, JSON)
    assert serializer.is_heavy(ReceivedPickle(b"\x01\x00[]", []))
    assert serializer.is_heavy(b"\x01\x01" + bytes(3000))  # in parts
    assert not serializer.is_heavy(b"\x01\x00[]" + bytes(3000))


def test_details_that_are_no_json_are_an_error_of_who_reads_them() -> None:
    serializer = DataOnly(MSGSPEC).serializer_of(echo, MSGSPEC)
    with pytest.raises(JobNotPicklableError, match="the details of a heartbeat cannot"):
        serializer.load_details(b"N.")
