"""Exceptions as data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncpool._core.codec.failures import load_failure, pack_failure, registered
from asyncpool.errors import (
    HookError,
    JobCancelled,
    JobNotPicklableError,
    JobRaisedError,
    ProtocolError,
    RemoteError,
)
from tests.helpers.data_jobs import StockError

ERRORS = registered([StockError, StopIteration, SystemExit])


def there_and_back(error: BaseException) -> BaseException:
    return load_failure(ERRORS, pack_failure(error, skip=0))


def test_a_registered_class_is_rebuilt_by_its_constructor() -> None:
    error = there_and_back(StockError("tea", 3))
    assert isinstance(error, StockError)
    assert (error.item, error.left) == ("tea", 3)


def test_any_other_class_comes_as_a_remote_error() -> None:
    error = there_and_back(KeyError("tea", [1, 2]))
    assert type(error) is RemoteError
    assert (error.type_name, error.args_sent) == ("builtins.KeyError", ("tea", [1, 2]))


def test_arguments_that_are_no_data_stay_where_they_are() -> None:
    error = there_and_back(StockError(object(), 3))  # type: ignore[arg-type]
    assert isinstance(error, RemoteError)
    assert error.args_sent is None


def test_a_constructor_that_fails_leaves_a_note() -> None:
    error = StockError("tea", 3)
    error.args = ("tea",)
    found = there_and_back(error)
    assert isinstance(found, RemoteError)
    assert "StockError cannot be rebuilt: TypeError" in found.__notes__[0]


@pytest.mark.parametrize("error", [StopIteration(1), SystemExit(3), JobCancelled()])
def test_what_must_not_be_raised_here_is_wrapped(error: BaseException) -> None:
    found = there_and_back(error)
    assert isinstance(found, JobRaisedError)
    assert type(found.exception) is type(error)


def test_errors_of_workers_come_as_themselves() -> None:
    error = there_and_back(JobNotPicklableError("no", direction="result", name="X"))
    assert isinstance(error, JobNotPicklableError)
    assert (str(error), error.direction, error.name) == ("no", "result", "X")
    hook = there_and_back(HookError("a:b", stage="exit", exception=StockError("a", 1)))
    assert isinstance(hook, HookError)
    assert (hook.hook, hook.stage, type(hook.exception)) == ("a:b", "exit", StockError)


GOOD: dict[str, Any] = {
    "type": "a",
    "text": "b",
    "traceback": "c",
    "notes": [],
    "args": None,
}


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {},
        {**GOOD, "type": 1},
        {**GOOD, "notes": None},
        {**GOOD, "notes": [1]},
        {**GOOD, "args": 3},
    ],
)
def test_what_is_no_exception_breaks_the_protocol(fields: Any) -> None:
    with pytest.raises(ProtocolError, match="it sent an exception"):
        load_failure(ERRORS, b"\x01\x00" + json.dumps(fields).encode())


def test_arguments_may_be_missing() -> None:
    fields = {name: value for name, value in GOOD.items() if name != "args"}
    error = load_failure(ERRORS, b"\x01\x00" + json.dumps(fields).encode())
    assert isinstance(error, RemoteError)
    assert error.args_sent is None


def test_only_classes_of_exceptions_are_registered() -> None:
    with pytest.raises(TypeError, match="errors takes classes of exceptions, not 3"):
        registered([3])  # type: ignore[list-item]


def test_a_text_of_any_length_comes_home() -> None:
    error = there_and_back(ValueError("x" * (20 << 20)))
    assert isinstance(error, RemoteError)
    assert error.text == "x" * (1 << 20)
