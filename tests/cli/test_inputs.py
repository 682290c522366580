"""Where items of ``asyncpool map`` come from."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncpool._cli.map.inputs import InputError, Item, open_input
from tests.helpers.patience import PATIENCE

Found = queue.Queue[list[Item] | InputError | None]


@contextmanager
def reading() -> Generator[tuple[int, Found]]:
    """Have CSV read from a pipe while the context lasts; yield its end, and a queue.

    What is read comes in the queue, and at last an error, or ``None``.
    """
    found: Found = queue.Queue()
    ours, theirs = os.pipe()
    source = open_input(f"/dev/fd/{ours}", None, "csv")
    os.close(ours)

    def read() -> None:
        try:
            for items in source.items():
                found.put(items)
        except InputError as error:
            found.put(error)
        else:
            found.put(None)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield theirs, found
    finally:
        os.close(theirs)
        thread.join()


def items_of(found: Found) -> list[Item]:
    """Return the next items; they come although nothing is behind them."""
    items = found.get(timeout=PATIENCE)
    assert isinstance(items, list)
    return items


def next_of(found: Found) -> list[Any]:
    """Return the next records."""
    return [json.loads(item.raw) for item in items_of(found)]


def test_records_do_not_wait_for_those_that_are_not_there_yet() -> None:
    with reading() as (pipe, found):
        # A blank line, and half a one, are behind what is complete.
        for text, value in ((b"name\na\n\n", "a"), (b"b\nc", "b")):
            os.write(pipe, text)
            assert next_of(found) == [{"name": value}]
    [item] = items_of(found)
    assert (item.number, item.raw) == (2, b'{"name": "c"}')
    assert found.get() is None


def test_records_do_not_wait_for_the_rest_of_a_quoted_field() -> None:
    with reading() as (pipe, found):
        # Half of a record, of three lines, is behind two that are complete.
        os.write(pipe, b'name,size\na,1\nb,2\n"c\nd\n')
        assert next_of(found) == [
            {"name": "a", "size": "1"},
            {"name": "b", "size": "2"},
        ]
        os.write(pipe, b'e",')
        os.write(pipe, b"3\n")
        assert next_of(found) == [{"name": "c\nd\ne", "size": "3"}]
        # In pieces, and with others before and behind.
        for text in (b'f,"4', b"\n", b'"\ng,"'):
            os.write(pipe, text)
        assert next_of(found) == [{"name": "f", "size": "4\n"}]
        for text in (b"5", b'\n"\nh,'):
            os.write(pipe, text)
        assert next_of(found) == [{"name": "g", "size": "5\n"}]
    [item] = items_of(found)
    assert (item.number, item.raw) == (5, b'{"name": "h", "size": ""}')
    assert found.get() is None


def test_a_header_may_take_several_lines_too() -> None:
    with reading() as (pipe, found):
        os.write(pipe, b'"na\n')
        os.write(pipe, b'me"\na\n')
        assert next_of(found) == [{"na\nme": "a"}]


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    ("rest", "complaint"),
    [
        ('"c\n\nd\n', "line 4: a quoted field of the record there has no end"),
        ('"c\nd" e\nf\n', "line 5: ',' expected after '\"'"),
    ],
)
def test_what_is_wrong_comes_behind_what_is_right(
    rest: str, complaint: str, *, at_once: bool
) -> None:
    """The record before it goes over two lines, which count."""
    good = 'name\n"a\nb"\n'
    with reading() as (pipe, found):
        for text in (good + rest,) if at_once else (good, rest):
            os.write(pipe, text.encode())
            if text == good:
                assert next_of(found) == [{"name": "a\nb"}]
        if at_once:
            assert next_of(found) == [{"name": "a\nb"}]
    error = found.get()
    assert isinstance(error, InputError)
    assert str(error).partition(", ")[2] == complaint


def test_a_header_that_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('name,"size\na,1\n')
    with pytest.raises(InputError) as caught:
        list(open_input(str(path), None, None).items())
    assert str(caught.value) == (
        f"{path}, line 1: a quoted field of the record there has no end"
    )
