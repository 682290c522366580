"""What must not be sent as pickle would: connections, which are numbers to it."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import pytest

from asyncpool._core.pickling.calls import dumps, pack_job, pack_value
from asyncpool._core.pickling.errors import load_error, pack_error
from asyncpool.errors import JobNotPicklableError

Pack = Callable[[object], object]


@pytest.fixture
def connection() -> Iterator[Connection]:
    one, other = Pipe()
    with one, other:
        yield one


def by_value(value: object) -> object:
    """Pack something that has no name to refer to, and *value*."""
    return pack_value((lambda: 1, value))


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(lambda value: pack_job(print, (value,), {}), id="argument"),
        pytest.param(lambda value: pack_job(print, ([value],), {}, number=1), id="in"),
        pytest.param(
            lambda value: pack_job(print, (), {"to": value}, limit=1000), id="limited"
        ),
        pytest.param(
            lambda value: pack_job(operator.methodcaller("f", value), (), {}),
            id="function",
        ),
        pytest.param(pack_value, id="result"),
        pytest.param(by_value, id="by value"),
    ],
)
def test_a_connection_is_refused_and_named(pack: Pack, connection: Connection) -> None:
    with pytest.raises(JobNotPicklableError) as caught:
        pack(connection)
    assert f"cannot send {connection!r}, which is a descriptor" in str(caught.value)
    assert type(caught.value.__cause__) is TypeError
    assert not connection.closed


def test_nor_is_it_sent_as_details(connection: Connection) -> None:
    with pytest.raises(TypeError, match="cannot send"):
        dumps({"progress": connection})


@pytest.mark.parametrize("cls", [ValueError, OSError])
def test_an_error_that_has_one_is_told_without_it(
    cls: type[Exception], connection: Connection
) -> None:
    """A copy of it, which is made to see whether it is good, would close the descriptor."""
    error: Any = load_error(pack_error(cls("lost", connection), skip=0))
    assert type(error) is JobNotPicklableError
    assert error.name == f"builtins.{cls.__name__}"
    assert connection.fileno() > 0
    connection.poll()


def test_other_picklers_are_left_alone(connection: Connection) -> None:
    with pytest.raises(JobNotPicklableError):
        pack_value(connection)
    copy = pickle.loads(pickle.dumps(connection))
    assert copy._handle == connection.fileno()
    copy._handle = None  # or else it would close it
