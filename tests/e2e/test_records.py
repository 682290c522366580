"""What loggers in workers record is handled by the loggers of this process."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn

import pytest

from asyncpool import Job, Pool, WorkerCrashedError
from tests.helpers import jobs, logs
from tests.helpers.gate import Gate
from tests.helpers.logs import Kept, handled_by
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, idle

pytestmark = ONE_LOOP


def now() -> float:
    return datetime.now(UTC).timestamp()


LIGHT = "[name in __import__('sys').modules for name in ('logging', 'threading')]"


async def test_a_worker_that_does_not_log_imports_no_logging() -> None:
    async with patience(), Pool(1) as pool:
        assert await pool.submit(eval, LIGHT) == [False, False]


def log_escapes() -> None:
    logger = logging.getLogger(logs.LOGGER)
    try:
        int("\x1b[2J")
    except ValueError:
        logger.exception("\x1b]0;pwn\x07\rone\ntwo\u2028three")


async def test_a_record_controls_no_terminal_and_keeps_its_lines(pool: Pool) -> None:
    kept = Kept()
    with handled_by(kept):
        await pool.submit(log_escapes)
        await kept.until(bool)
    [record] = kept.records
    assert record.getMessage() == "\\x1b]0;pwn\\x07\\x0done\ntwo\\u2028three"
    assert record.exc_text is not None
    assert record.exc_text.endswith(" with base 10: '\\x1b[2J'")


def log_as(name: str) -> None:
    logging.getLogger(name).warning("it is I")


async def test_a_logger_has_no_name_that_looks_like_another() -> None:
    kept = Kept()
    unseen = "\u200b\ufeff\u2060\u2066\u00ad\ufe0f\u3164"
    async with patience(), Pool(1) as pool:
        with handled_by(kept, ""):
            await pool.submit(log_as, f"asyncpool{unseen}")
            await pool.submit(log_as, "tests.größe")
            await kept.until(lambda messages: messages.count("it is I") == 2)
    names = [one.name for one in kept.records if one.getMessage() == "it is I"]
    shown = "\\u200b\\ufeff\\u2060\\u2066\\xad\\ufe0f\\u3164"
    assert names == [f"asyncpool{shown}", "tests.größe"]


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


async def test_an_error_comes_with_its_traceback(pool: Pool) -> None:
    kept = Kept()
    with handled_by(kept):
        await pool.submit(logs.log_error)
        await kept.until(bool)
    lines = logging.Formatter("%(message)s").format(kept.records[0]).splitlines()
    assert lines[:2] == ["it went wrong", "Traceback (most recent call last):"]
    assert lines[-1] == "ZeroDivisionError: division by zero"


async def test_levels_are_as_they_were_here_when_the_pool_was_started() -> None:
    kept = Kept()
    names = ("", "tests", "tests.somewhere", "tests.deep.down", "elsewhere")
    with (
        handled_by(kept, level=logging.DEBUG),
        handled_by(kept, "tests.deep", level=logging.ERROR),
    ):
        async with patience(), Pool(1) as pool:
            root = logging.getLogger().getEffectiveLevel()
            assert await pool.submit(logs.levels, *names) == [root, 10, 10, 40, root]
            await pool.submit(logs.log, "fine print", level=logging.DEBUG)
            await pool.submit(logs.log, "no", level=30, name="tests.deep.down")
            await pool.submit(logs.log, "the end", level=30)
            await kept.until(lambda messages: "the end" in messages)
    assert kept.messages == ["fine print", "the end"]


async def test_what_is_disabled_here_is_disabled_there(pool: Pool) -> None:
    logging.disable(logging.INFO)
    try:
        with handled_by(Kept(), level=logging.DEBUG):
            async with patience():
                assert not await pool.submit(logs.enabled, logging.INFO)
                assert await pool.submit(logs.enabled, logging.WARNING)
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", ["tests", "tests.nobody.here"])
async def test_a_level_that_is_raised_here_later_counts_too(name: str) -> None:
    kept = Kept()
    async with patience():
        with handled_by(kept, level=logging.DEBUG) as logger:
            async with Pool(1) as pool:
                logger.setLevel(logging.ERROR)
                await pool.submit(logs.log, "no", level=logging.WARNING, name=name)
                await pool.submit(logs.log, "yes", level=logging.ERROR, name=name)
                await kept.until(bool)
    assert kept.messages == ["yes"]


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
            assert await pool.submit(logs.handlers) == ["RecordHandler"]
            await pool.submit(logs.log, "in a job")
            await kept.until(lambda messages: len(messages) == 2)
    assert kept.messages == ["at the start", "in a job"]
    ids = [(vars(r)["job_id"], vars(r)["attempt"]) for r in kept.records]
    assert ids == [(None, 0), (2, 1)]


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
    """Breaks down over every other record."""

    def handle(self, record: logging.LogRecord) -> bool:
        if len(self.records) % 2 == 0:
            self.emit(record)
            raise LookupError("a handler")
        return bool(super().handle(record))


async def test_a_handler_that_raises_breaks_nothing(pool: Pool) -> None:
    hostile = Hostile()
    with handled_by(hostile):
        async with patience():
            await pool.submit(logs.log_many, 10)
            await hostile.until(lambda messages: len(messages) == 10)
            await assert_serves(pool)
    assert hostile.messages == [str(number) for number in range(10)]


class Ending(Kept):
    """Takes a record for the end of the world."""

    def emit(self, record: logging.LogRecord) -> NoReturn:
        super().emit(record)
        raise asyncio.CancelledError


async def test_a_handler_that_cancels_breaks_nothing(pool: Pool) -> None:
    ending = Ending()
    with handled_by(ending):
        async with patience():
            await pool.submit(logs.log_many, 10)
            await ending.until(lambda messages: len(messages) == 10)
            await assert_serves(pool)
    assert len(ending.messages) == 10


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
async def test_who_configures_logging_in_a_worker_has_both(
    output: Literal["log", "inherit"], capfd: pytest.CaptureFixture[str]
) -> None:
    kept, printed = Kept(), Kept()
    with handled_by(kept), handled_by(printed, "asyncpool.worker"):
        async with (
            patience(),
            Pool(1, worker_output=output, initializer=logs.configure) as pool,
        ):
            await pool.submit(logs.log, "twice")
            await kept.until(bool)
    assert kept.messages == ["twice"]
    text = "\n".join(printed.messages) + capfd.readouterr().err
    assert "there: twice" in text


async def test_records_can_be_switched_off() -> None:
    kept = Kept()
    with handled_by(kept):
        async with patience(), Pool(1, initializer=logs.switch_off) as pool:
            await pool.submit(logs.log, "nobody hears this")
            assert await pool.submit(logs.handlers) == []
    assert kept.messages == []


_FORGE = """
def forge(payload):
    import gc
    from asyncpool._core.wire.frames import FrameKind
    from asyncpool._worker.job.control import Control
    [control] = [one for one in gc.get_objects() if type(one) is Control]
    control.send(FrameKind.RECORD, payload)
    __import__("time").sleep(3600)
"""


def forge(payload: bytes) -> None:
    space: dict[str, object] = {}
    exec(_FORGE, space)
    space["forge"](payload)  # type: ignore[operator]


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"\xff" * 100, bytes(1 << 19)], ids=len
)
async def test_a_forged_record_costs_its_worker_and_nothing_else(
    payload: bytes,
) -> None:
    async with patience(), Pool(1) as pool:
        with pytest.raises(WorkerCrashedError) as caught:
            await pool.submit(forge, payload)
        assert caught.value.kind == "protocol"
        assert caught.value.crashes[0].detail == (
            "killed since a record of a logger cannot be read"
        )
        await assert_serves(pool)
