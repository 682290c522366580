"""What workers print goes to ``logging``, and what they record to the loggers of this process."""

from __future__ import annotations

import asyncio
import io
import logging
import os
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest

from asyncpool import Crash, Job, Pool, RestartPolicy
from asyncpool.errors import PoolBrokenError, RemoteError, WorkerCrashedError
from tests.helpers import faults, jobs, logs
from tests.helpers.faults import by_name
from tests.helpers.gate import Gate
from tests.helpers.logs import Kept, handled_by
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, crash_of, idle
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
    await pool.submit(jobs.say_bytes, b"caf\xc3", b"\xa9 \xff\n")
    while len(said(lines)) < 5:  # noqa: ASYNC110 - logging tells nobody
        await asyncio.sleep(0)
    logged = said(lines)
    told = [text for level, text in logged if level == logging.INFO]
    assert told == ["one", "two", "threefour", "café \ufffd"]
    assert [text for level, text in logged if level == logging.WARNING] == ["broken"]
    assert f"worker {pid} in slot 0: one" in lines.messages


_CELL: ContextVar[str] = ContextVar("cell", default="whichever it is")


class Cells(Kept):
    """Keeps lines, and in which cells of a notebook they are printed."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        vars(record)["cell"] = _CELL.get()


async def test_lines_are_of_no_context() -> None:
    """A notebook would show all of them below the cell that has started the pool."""
    cells, crashed = Cells(), list[str]()
    _CELL.set("first")
    pool = Pool(1, on_crash=lambda _: crashed.append(_CELL.get()))
    with handled_by(cells, "asyncpool.worker"):
        async with patience(), pool:
            _CELL.set("second")
            await pool.submit(jobs.say, "here\n")
            with pytest.raises(WorkerCrashedError):
                await pool.submit(os._exit, 3)
            await pool.submit(jobs.say, "there\n")
    assert [vars(it)["cell"] for it in cells.records] == ["whichever it is"] * 2
    assert crashed == ["whichever it is"]


async def test_of_a_progress_bar_its_last_state_is_logged(
    pool: Pool, lines: pytest.LogCaptureFixture
) -> None:
    states = [b"\r%3d%%|" % n + b"#" * 80 for n in range(500)]
    await pool.submit(jobs.say_bytes, *states, b"\r\n", b"done\r", b"\n")
    while len(said(lines)) < 2:  # noqa: ASYNC110 - logging tells nobody
        await asyncio.sleep(0)
    assert [text for _, text in said(lines)] == [f"499%|{'#' * 80}", "done"]


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
            # One that waits for work is none of them.
            assert await pool.submit(jobs.keep_thread_pool) == 8
            await pool.submit(jobs.wait_behind, room.path, "uploader")
    told = (
        "asyncpool: this worker ends, and with it the threads that its calls have left "
        "running: uploader; a call should join the threads that it starts"
    )
    assert said(lines) == [(logging.WARNING, told)]


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


# What loggers in workers record.


def now() -> float:
    return datetime.now(UTC).timestamp()


LIGHT = "[name in __import__('sys').modules for name in ('logging', 'threading')]"


async def test_a_worker_that_does_not_log_imports_no_logging() -> None:
    async with patience(), Pool(1) as pool:
        assert await pool.submit(eval, LIGHT) == [False, False]


UNSEEN = "\u200b\ufeff\u2060\u2066\u00ad\ufe0f\u3164"
SHOWN = "\\u200b\\ufeff\\u2060\\u2066\\xad\\ufe0f\\u3164"


async def test_no_name_of_a_logger_looks_like_another(pool: Pool) -> None:
    kept = Kept()
    with handled_by(kept, ""):
        for name in (f"asyncpool{UNSEEN}", "tests.größe"):
            await pool.submit(logs.log, "it is I", level=30, name=name)
        await kept.until(lambda messages: messages.count("it is I") == 2)
    ours = [it.name for it in kept.records if it.getMessage() == "it is I"]
    assert ours == [f"asyncpool{SHOWN}", "tests.größe"]


async def test_no_text_of_a_worker_controls_a_terminal_or_forges_a_record() -> None:
    handler, ours = logging.StreamHandler(io.StringIO()), logging.getLogger("tests")
    form = "LOG %(message)s for %(tenant)s"
    handler.setFormatter(logging.Formatter(form, defaults={"tenant": "nobody"}))
    once = RestartPolicy(max_failed_starts=1)
    async with patience(3):
        with handled_by(handler, ""):
            async with Pool(1) as pool:
                with pytest.raises(WorkerCrashedError):
                    await pool.options(max_attempts=1).submit(logs.forge_and_die)
            async with Pool(1, codec="json") as pool:
                with pytest.raises(RemoteError) as caught:
                    await pool.submit(logs.forge_error)
                ours.error("%s", caught.value, exc_info=caught.value)
            with pytest.raises(PoolBrokenError):
                await Pool(1, initializer=logs.forge_error, restart_policy=once).start()
    lines = handler.stream.getvalue().splitlines()
    assert [it for it in lines if it.startswith("2026") or "\x1b" in it] == []
    # In the message, the extra and the traceback; in what is printed, the message of the crash, and
    # its stack; in the two messages, the traceback and the notes of the error; and in a failed start.
    assert sum("2026-01-01 CRITICAL" in line for line in lines) >= 14


async def test_a_record_is_handled_as_if_it_came_from_here() -> None:
    kept, before = Kept(), now()
    async with patience(), Pool(1) as pool:
        with handled_by(kept):
            pid = await pool.submit(jobs.pid)
            job = pool.submit(logs.log_in_detail)
            await job
            await kept.until(bool)
    [record] = kept.records
    assert (record.name, record.levelno, record.levelname) == (
        logs.LOGGER,
        logging.WARNING,
        "WARNING",
    )
    assert (record.getMessage(), record.args) == ("one and 2", None)
    found = vars(record)
    assert (found["job_id"], found["attempt"], found["pid"]) == (job.id, 1, pid)
    assert (record.process, record.processName) == (pid, f"{pool.name}-worker-0")
    assert record.threadName == "MainThread"
    assert (record.pathname, record.filename, record.module) == (
        logs.__file__,
        "logs.py",
        "logs",
    )
    assert record.funcName == "log_in_detail"
    assert record.lineno > 1
    assert before - 1 <= record.created <= now() + 1
    assert 0 <= record.msecs < 1000
    assert (found["tenant"], found["size"]) == ("acme", 3)
    assert found["lock"].startswith("<unlocked _thread.lock object at ")
    assert record.exc_info is None
    assert "in log_in_detail" in str(record.stack_info)


async def test_levels_are_as_they_were_here_when_the_pool_was_started() -> None:
    kept = Kept()
    names = ("", "tests", "tests.somewhere", "tests.deep.down", "elsewhere")
    with (
        handled_by(kept, level=logging.DEBUG) as logger,
        handled_by(kept, "tests.deep", level=logging.ERROR),
    ):
        async with patience(), Pool(1) as pool:
            root = logging.getLogger().getEffectiveLevel()
            assert await pool.submit(logs.levels, *names) == [root, 10, 10, 40, root]
            await pool.submit(logs.log, "fine print", level=logging.DEBUG)
            await pool.submit(logs.log, "no", level=30, name="tests.deep.down")
            await pool.submit(logs.log, "later", level=30)
            await kept.until(lambda messages: "later" in messages)
            # One that is raised here later counts too.
            logger.setLevel(logging.ERROR)
            for name in ("tests", "tests.nobody.here"):
                await pool.submit(logs.log, "no", level=logging.WARNING, name=name)
                await pool.submit(logs.log, "yes", level=logging.ERROR, name=name)
            await kept.until(lambda messages: messages.count("yes") == 2)
    assert kept.messages == ["fine print", "later", "yes", "yes"]


async def test_what_is_disabled_here_is_disabled_there() -> None:
    logging.disable(logging.INFO)
    try:
        with handled_by(Kept(), level=logging.DEBUG):
            async with patience(), Pool(1) as pool:
                assert not await pool.submit(logs.enabled, logging.INFO)
                assert await pool.submit(logs.enabled, logging.WARNING)
    finally:
        logging.disable(logging.NOTSET)


async def test_a_logger_of_the_name_is_asked_and_none_is_made(pool: Pool) -> None:
    kept, quiet = Kept(), logging.getLogger("tests.quiet")
    quiet.addFilter(lambda record: "secret" not in record.getMessage())
    with handled_by(kept):
        await pool.submit(logs.log, "secret", level=30, name="tests.quiet")
        await pool.submit(logs.log, "open", level=30, name="tests.quiet")
        await pool.submit(logs.log, "new", level=30, name="tests.a.new.one")
        await pool.submit(logs.log, "root", level=30, name="")
        await pool.submit(logs.log, "the end", level=30)
        await kept.until(lambda messages: "the end" in messages)
    assert kept.messages == ["open", "new", "the end"]
    assert kept.records[1].name == "tests.a.new.one"
    assert "tests.a.new.one" not in logging.root.manager.loggerDict


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_logging_that_is_preloaded_is_heard_too(
    launcher: Literal["forkserver", "spawn"],
) -> None:
    kept = Kept()
    with handled_by(kept):
        pool = Pool(
            1,
            launcher=launcher,
            preload=["logging", "tests.helpers.logs"],
            initializer=logs.log_at_start,
        )
        async with patience(), pool:
            await pool.submit(logs.log, "in a job")
            await kept.until(lambda messages: len(messages) == 2)
    assert kept.messages == ["at the start", "in a job"]
    ids = [(vars(r)["job_id"], vars(r)["attempt"]) for r in kept.records]
    assert ids == [(None, 0), (1, 1)]


async def test_a_job_has_a_logger(pool: Pool) -> None:
    kept = Kept()
    with handled_by(kept, "asyncpool.job"):
        async with patience():
            job = pool.submit(logs.log_as_job, tenant="acme")
            await job
            await pool.submit(logs.log_in_thread_by_adapter)
            await kept.until(lambda messages: len(messages) == 2)
    assert [record.name for record in kept.records] == ["asyncpool.job"] * 2
    assert kept.messages == ["of a job", "by adapter"]
    ids = [(vars(r)["job_id"], vars(r)["attempt"]) for r in kept.records]
    assert ids == [(job.id, 1), (job.id + 1, 1)]


async def test_the_last_words_of_a_worker_that_is_killed() -> None:
    kept = Kept()
    with handled_by(kept):
        async with patience(), Pool(1) as pool:
            with pytest.raises(WorkerCrashedError):
                await pool.submit(logs.log_and_die, 50)
    # At the latest when the pool has ended.
    assert kept.messages == [f"last words {number}" for number in range(50)]


async def test_a_flood_holds_up_nobody_else_and_ends_when_it_is_told_to() -> None:
    kept = Kept()
    with handled_by(kept):
        async with patience(), Gate() as gate, Pool(2) as pool:
            await idle(pool)
            flood: Job[Any] = pool.submit(logs.log_without_end, gate.path)
            visitor = await gate.visitor("flood")
            for number in range(300):
                assert await pool.submit(jobs.square, number) == number**2
            before = len(kept.records)
            await kept.until(lambda messages: len(messages) > before + 1000)
            flood.cancel()
            await asyncio.wait([flood])
            pids = {await pool.submit(jobs.pid) for _ in range(50)}
            await assert_serves(pool)
            assert (pool.stats().crashes, pool.stats().spawned) == (0, 2)
            assert pids
    assert visitor.pid
    # Nothing was lost on the way, whatever was left out at the end.
    numbers = [int(message.split()[1]) for message in kept.messages]
    assert numbers == list(range(len(numbers)))


async def test_jobs_that_log_are_interrupted_and_their_worker_goes_on() -> None:
    kept = Kept()
    with handled_by(kept):
        async with patience(), Gate() as gate, Pool(1) as pool:
            pid = await pool.submit(jobs.pid)
            for turn in range(1, 31):
                flood: Job[Any] = pool.submit(logs.log_without_end, gate.path)
                await gate.visitor("flood", turn)
                flood.cancel()
                assert await pool.submit(logs.log, "between") == pid
    assert kept.messages.count("between") == 30


class Hostile(Kept):
    """Breaks down over each record, once it has it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def emit(self, record: logging.LogRecord) -> NoReturn:
        super().emit(record)
        raise self._error


@pytest.mark.parametrize("error", [LookupError("mine"), asyncio.CancelledError()])
async def test_a_handler_that_raises_breaks_nothing(
    pool: Pool, error: BaseException
) -> None:
    hostile = Hostile(error)
    with handled_by(hostile):
        async with patience():
            await pool.submit(logs.log_many, 10)
            await hostile.until(lambda messages: len(messages) == 10)
            await assert_serves(pool)
    assert hostile.messages == [str(number) for number in range(10)]


async def test_a_copy_of_a_worker_is_silent(pool: Pool) -> None:
    kept = Kept()
    with handled_by(kept):
        async with patience():
            pid = await pool.submit(logs.log_in_fork)
            await kept.until(bool)
            await assert_serves(pool)
    [record] = kept.records
    assert (record.getMessage(), record.process) == ("in the worker", pid)


@pytest.mark.parametrize("output", ["log", "inherit"])
@pytest.mark.parametrize("how", ["basicConfig", "force", "dictConfig"])
async def test_who_configures_logging_in_a_worker_has_both_until_it_is_switched_off(
    how: str, output: Literal["log", "inherit"], capfd: pytest.CaptureFixture[str]
) -> None:
    kept, printed = Kept(), Kept()
    with handled_by(kept), handled_by(printed, "asyncpool.worker"):
        pool = Pool(
            1, worker_output=output, initializer=logs.configure, initargs=(how,)
        )
        async with patience(), pool:
            await pool.submit(logs.log, "twice", level=logging.WARNING)
            await kept.until(bool)
            await pool.submit(logs.switch_off)
            await pool.submit(logs.log, "not here")
    assert kept.messages == ["twice"]
    text = "\n".join([*printed.messages, capfd.readouterr().err])
    # As anywhere, basicConfig() changes nothing if there is a handler: logging.info() calls it, too.
    found = [f"there: {message}" in text for message in ("twice", "not here")]
    assert found == [how != "basicConfig"] * 2


@pytest.mark.parametrize(
    ("name", "level", "where"),
    [
        ("", logging.WARNING, "printed"),  # as under pytest, or after basicConfig()
        ("", logging.INFO, "logged"),
        ("asyncpool.worker", logging.INFO, "logged"),
        ("asyncpool.worker", logging.WARNING, "nowhere"),
        ("asyncpool", logging.WARNING, "nowhere"),
    ],
)
async def test_a_print_vanishes_only_if_somebody_wants_it(
    name: str,
    level: int,
    where: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(level, name)
    async with patience(), Pool(1) as pool:
        await pool.submit(jobs.call, print, "here I am")
    printed = capfd.readouterr().out == "here I am\n"
    logged = [message for _, message in said(caplog)] == ["here I am"]
    assert (printed, logged) == (where == "printed", where == "logged")


@pytest.mark.parametrize("quiet", ["asyncpool.pool", "asyncpool.worker"])
async def test_the_records_of_the_pool_and_those_of_jobs_have_a_level_each(
    quiet: str,
) -> None:
    kept, none = Kept(), logging.NullHandler()
    with handled_by(kept, "asyncpool"), handled_by(none, quiet, logging.WARNING):
        async with patience(), Pool(1) as pool:
            await pool.submit(jobs.call, print, "here I am")
    names = {record.name for record in kept.records}
    assert names == {"asyncpool.pool", "asyncpool.worker"} - {quiet}
