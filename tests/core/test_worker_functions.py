"""A worker's half of a pool that is data only."""

from __future__ import annotations

import pytest

from asyncpool._core.base.names import function_name
from asyncpool._core.codec.data_only import DataOnly
from asyncpool._core.codec.formats import format_of
from asyncpool._core.codec.worker_functions import WorkerFunctions
from tests.helpers.data_jobs import HOME, Reversed, echo


def test_a_worker_finds_the_function_and_the_codec_that_the_pool_names() -> None:
    for codec in ("json", "msgspec", Reversed()):
        how = format_of(codec)
        data = DataOnly(how)
        found = WorkerFunctions(data.config).find(data.describe(echo, how))
        assert found.function is echo
        assert found.how.name == how.name
        assert function_name(found) == f"{HOME}.echo"  # type: ignore[arg-type]


def test_a_worker_looks_at_the_list_too() -> None:
    how = format_of("json")
    functions = WorkerFunctions(DataOnly(how, ["math:*"]).config)
    with pytest.raises(LookupError, match="is not among the functions of this pool"):
        functions.find(DataOnly(how).describe(echo, how))


def test_a_call_that_comes_alone_brings_its_function() -> None:
    how = format_of("json")
    data = DataOnly(how)
    found, call = WorkerFunctions(data.config).split(
        data.pack_alone(echo, (1,), {}, how)
    )
    assert (found.function, call) == (echo, b"\x01\x00[[1],[]]")
