"""What workers print goes to ``logging``, and its end into crash reports."""

from __future__ import annotations

import asyncio
import logging
import os
from contextvars import ContextVar
from pathlib import Path

import pytest

from asyncpool import Crash, Pool, WorkerCrashedError
from tests.helpers import faults, jobs
from tests.helpers.faults import by_name
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, crash_of
from tests.helpers.waiting_room import WaitingRoom

pytestmark = ONE_LOOP


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "asyncpool.worker")
    return caplog


def said(lines: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [
        (record.levelno, record.getMessage().partition(": ")[2])
        for record in lines.records
        if record.name == "asyncpool.worker"
    ]


async def test_lines_are_logged_one_by_one(
    pool: Pool, lines: pytest.LogCaptureFixture
) -> None:
    pid = await pool.submit(jobs.pid)
    await pool.submit(jobs.say, "one\ntw")
    await pool.submit(jobs.say, "o\nthree", "broken\n")
    await pool.submit(jobs.call, print, "four")
    logged = said(lines)
    assert [text for level, text in logged if level == logging.INFO] == [
        "one",
        "two",
        "threefour",
    ]
    assert [text for level, text in logged if level == logging.WARNING] == ["broken"]
    assert f"worker {pid} in slot 0: one" in lines.messages


class Cells(logging.Handler):
    """Notes in which cell of a notebook a line is printed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().rpartition(": ")[2]
        self.seen.append((text, _CELL.get("whichever it is")))


_CELL: ContextVar[str] = ContextVar("cell")


async def test_lines_are_of_no_context(lines: pytest.LogCaptureFixture) -> None:
    """A notebook would show all of them below the cell that has started the pool."""
    assert lines.records == []
    logger, cells = logging.getLogger("asyncpool.worker"), Cells()
    logger.addHandler(cells)
    _CELL.set("first")
    crashed = list[str]()
    pool = Pool(1, on_crash=lambda _: crashed.append(_CELL.get("whichever it is")))
    try:
        async with patience(), pool:
            _CELL.set("second")
            await pool.submit(jobs.say, "here\n")
            with pytest.raises(WorkerCrashedError):
                await pool.submit(os._exit, 3)
            await pool.submit(jobs.say, "there\n")
    finally:
        logger.removeHandler(cells)
    assert cells.seen == [("here", "whichever it is"), ("there", "whichever it is")]
    assert crashed == ["whichever it is"]


async def test_nothing_is_lost_of_a_flood(
    pool: Pool, lines: pytest.LogCaptureFixture
) -> None:
    await pool.submit(jobs.flood, 1, 500_000)
    while len(lines.records) < 5000:  # noqa: ASYNC110 - logging tells nobody
        await asyncio.sleep(0)
    assert [text for _, text in said(lines)] == ["x" * 99] * 5000


async def test_threads_that_end_with_their_worker_are_named(
    lines: pytest.LogCaptureFixture,
) -> None:
    """Whoever comes from ProcessPoolExecutor expects that somebody waits for them."""
    with WaitingRoom() as room:
        async with patience(), Pool(1) as pool:
            await pool.submit(jobs.wait_behind, room.path, "uploader")
    assert (
        logging.WARNING,
        (
            "asyncpool: this worker ends, and with it the threads that its calls have left"
            " running: uploader; a call should join the threads that it starts"
        ),
    ) in said(lines)


async def test_threads_that_wait_for_work_are_not(
    lines: pytest.LogCaptureFixture,
) -> None:
    async with patience(), Pool(1) as pool:
        assert await pool.submit(jobs.keep_thread_pool) == 8
        await pool.submit(jobs.say, "hello")
    assert [text for _, text in said(lines)] == ["hello"]


async def test_the_last_words_of_a_worker_are_in_its_crash() -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(1, on_crash=crashes.append) as pool:
        await pool.submit(jobs.say, "", "".join(f"line {n}\n" for n in range(100)))
        job = pool.submit(say_and_die)
        crash = await crash_of(job, by_name("exit 3"))
        await assert_serves(pool)
    assert crash.stderr_tail[-2:] == ("line 99", "farewell")
    assert len(crash.stderr_tail) == 40
    assert "farewell" in str(job.exception())
    assert crashes == [crash]


def say_and_die() -> None:
    jobs.say("not this", "farewell")
    faults.commit("exit 3")


async def test_what_a_preload_has_printed_is_not_printed_again_by_every_worker(
    lines: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (tmp_path / "ap_chatty.py").write_text(
        "import sys\n"
        "print('module says hello, and', end=' ')\n"
        "sys.stderr.write('half a line ')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    async with patience(), Pool(1, preload=["ap_chatty"]) as pool:
        await pool.submit(jobs.say, "one\n", "two\n")
    assert sorted(said(lines)) == [(logging.INFO, "one"), (logging.WARNING, "two")]


async def test_closing_the_standard_streams_disturbs_nobody() -> None:
    async with patience(), Pool(1) as pool:
        pid = await pool.submit(jobs.pid)
        await pool.submit(jobs.close_streams)
        results = await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(9)))
        assert results == [n * n for n in range(9)]
        assert await pool.submit(jobs.pid) == pid
        assert pool.stats().crashes == 0


async def test_there_is_nothing_to_read_from_stdin(pool: Pool) -> None:
    assert await pool.submit(jobs.read_stdin) == ("", b"")


async def test_half_of_a_character_is_shown_as_such(
    lines: pytest.LogCaptureFixture,
) -> None:
    async with patience(), Pool(1) as pool:
        await pool.submit(jobs.say_bytes, b"caf\xc3", b"\xa9 \xff\n")
    assert said(lines) == [(logging.INFO, "café �")]
