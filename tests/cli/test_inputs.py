"""Where items of ``asyncpool map`` come from."""

from __future__ import annotations

import os
import queue
import threading

from asyncpool._cli.inputs import Item, open_input
from tests.helpers.patience import PATIENCE


def test_records_do_not_wait_for_those_that_are_not_there_yet() -> None:
    found: queue.Queue[list[Item] | None] = queue.Queue()
    reading, writing = os.pipe()
    source = open_input(f"/dev/fd/{reading}", None, "csv")
    os.close(reading)

    def read() -> None:
        for items in source.items():
            found.put(items)
        found.put(None)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        # A blank line, and half a one, are behind what is complete.
        for text, value in ((b"name\na\n\n", b"a"), (b"b\nc", b"b")):
            os.write(writing, text)
            [item] = found.get(timeout=PATIENCE) or []
            assert item.raw == b'{"name": "%s"}' % value
    finally:
        os.close(writing)
        thread.join()
    [item] = found.get() or []
    assert (item.number, item.raw) == (2, b'{"name": "c"}')
    assert found.get() is None
