"""Tests of asyncpool/_runtime/output/log_records.py."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from time import perf_counter
from typing import cast

import pytest

from asyncpool._core.wire.log_records import LogEntry
from asyncpool._runtime.channel.channel import Channel
from asyncpool._runtime.output.log_records import (
    _AHEAD,
    _TURN,
    LogNotes,
    WorkerLogs,
    explicit_levels,
)
from tests.core.test_wire import ENTRY
from tests.helpers.logs import Kept, handled_by
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS


class Worker:
    """One that logs, and the channel that it logs through."""

    pid: int | None = 77
    slot = 3
    generation = 2

    def __init__(self, worker_logs: WorkerLogs) -> None:
        self.accused: list[str] = []
        self.calls: list[str] = []
        self.notes = LogNotes(worker_logs, self, cast("Channel", self))

    def distrust(self, detail: str) -> None:
        self.accused.append(detail)

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def say(self, message: str) -> None:
        self.notes.add(entry(message).pack())


class Slow(Kept):
    """Takes the whole turn for each record."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        until = perf_counter() + _TURN
        while perf_counter() < until:
            pass


def entry(message: str) -> LogEntry:
    return ENTRY._replace(name="tests.worker_logs", message=message)


def worker_logs() -> WorkerLogs:
    return WorkerLogs(asyncio.get_running_loop(), "shop")


async def test_records_are_handled_in_their_order_and_not_at_once() -> None:
    kept, logs = Kept(), worker_logs()
    one, other = Worker(logs), Worker(logs)
    with handled_by(kept):
        one.say("a")
        other.say("b")
        one.say("c")
        assert kept.messages == []
        async with patience():
            await logs.finish()
    assert kept.messages == ["a", "b", "c"]
    assert (one.calls, other.calls) == ([], [])
    assert {vars(record)["pid"] for record in kept.records} == {77}


async def test_the_loop_has_its_turn_between_records_that_take_long() -> None:
    slow, logs = Slow(), worker_logs()
    worker = Worker(logs)
    with handled_by(slow):
        for number in range(5):
            worker.say(str(number))
        seen = []
        for _ in range(6):
            await asyncio.sleep(0)
            seen.append(len(slow.messages))
    assert seen[0] <= 1
    assert all(later - before <= 1 for before, later in pairwise(seen))
    assert seen[-1] == 5


async def test_who_is_too_far_ahead_is_read_no_more_until_the_rest_is_done() -> None:
    kept, logs = Kept(), worker_logs()
    fast, quiet = Worker(logs), Worker(logs)
    with handled_by(kept):
        for number in range(_AHEAD - 1):
            fast.say(str(number))
        assert fast.calls == []
        fast.say("more")
        fast.say("in the same read")
        quiet.say("quiet")
        assert fast.calls == ["pause"]
        async with patience():
            await kept.until(lambda messages: "in the same read" in messages)
        assert fast.calls == ["pause", "resume"]
        async with patience():
            await logs.finish()
    assert quiet.calls == []
    assert kept.messages[-1] == "quiet"


async def test_what_cannot_be_read_accuses_its_author_alone() -> None:
    kept, logs = Kept(), worker_logs()
    good, bad = Worker(logs), Worker(logs)
    with handled_by(kept):
        bad.notes.add(b"nonsense")
        good.say("fine")
        async with patience():
            await logs.finish()
    assert bad.accused == ["a record of a logger cannot be read"]
    assert good.accused == []
    assert kept.messages == ["fine"]


@pytest.mark.logs("records-dropped")
async def test_what_is_left_is_dropped_at_the_end_and_that_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept, logs = Kept(), worker_logs()
    worker = Worker(logs)
    with handled_by(kept):
        worker.say("late")
        worker.say("later")
        logs.close()
        await logs.finish()
        logs.close()
    assert kept.messages == []
    assert caplog.messages == [
        "the pool ends; 2 log records of its workers are dropped"
    ]


async def test_before_its_pid_is_known_a_worker_goes_by_its_own_word() -> None:
    kept, logs = Kept(), worker_logs()
    worker = Worker(logs)
    worker.pid = None
    with handled_by(kept):
        worker.say("early")
        async with patience():
            await logs.finish()
    assert [vars(record)["pid"] for record in kept.records] == [ENTRY.process]


async def test_times_are_those_of_the_worker() -> None:
    kept, logs = Kept(), worker_logs()
    worker = Worker(logs)
    with handled_by(kept):
        worker.say("then")
        now = logging.makeLogRecord({})
        async with patience():
            await logs.finish()
    [record] = kept.records
    assert (record.created, record.msecs) == (1000.5, 500.0)
    since_then = now.relativeCreated - record.relativeCreated
    assert since_then == pytest.approx((now.created - 1000.5) * 1000, abs=1)


async def test_fields_cannot_pose_as_anything_else() -> None:
    kept, logs = Kept(), worker_logs()
    worker = Worker(logs)
    posing = {"levelno": 50, "job_id": 99, "pid": 1, "exc_info": "no", "args": 5}
    with handled_by(kept):
        worker.notes.add(entry("posing")._replace(fields=posing).pack())
        async with patience():
            await logs.finish()
    [record] = kept.records
    found = vars(record)
    assert (record.levelno, record.exc_info, record.args) == (20, None, None)
    assert (found["job_id"], found["pid"]) == (3, 77)
    assert logging.Formatter("%(message)s").format(record) == "posing"


@pytest.mark.parametrize(
    "name", ["asyncpool", "asyncpool.worker", "asyncpool.job", "asyncpool.x.y"]
)
async def test_a_worker_does_not_speak_for_the_service(name: str) -> None:
    kept, logs = Kept(), worker_logs()
    worker = Worker(logs)
    with handled_by(kept, "asyncpool"):
        worker.notes.add(entry("a worker died")._replace(name=name).pack())
        async with patience():
            await logs.finish()
    assert [(it.name, it.msg) for it in kept.records] == [
        ("asyncpool.job", "a worker died")
    ]


async def test_a_worker_gives_no_message_an_id_of_the_service() -> None:
    kept, logs = Kept(), worker_logs()
    worker = Worker(logs)
    given = {"message_id": "worker-crashed", "kind": "crash"}
    with handled_by(kept):
        worker.notes.add(entry("forged")._replace(fields=given).pack())
        async with patience():
            await logs.finish()
    found = vars(kept.records[0])
    assert "message_id" not in found
    assert (found["extra_message_id"], found["kind"]) == ("worker-crashed", "crash")


async def test_what_only_workers_say_keeps_its_id() -> None:
    kept, logs = Kept(), worker_logs()
    worker = Worker(logs)
    given = {"message_id": "retire-called", "reason": "old"}
    with handled_by(kept):
        worker.notes.add(entry("retires")._replace(fields=given).pack())
        async with patience():
            await logs.finish()
    found = vars(kept.records[0])
    assert (found["message_id"], found["reason"]) == ("retire-called", "old")
    assert "extra_message_id" not in found


async def test_what_is_given_by_our_names_has_others() -> None:
    kept, logs = Kept(), worker_logs()
    worker = Worker(logs)
    given = {"pid": "me", "job_id": 3, "attempt": 5}  # the job's own logger gives 3
    with handled_by(kept):
        worker.notes.add(entry("by names")._replace(fields=given).pack())
        async with patience():
            await logs.finish()
    [record] = kept.records
    found = vars(record)
    assert (found["pid"], found["job_id"], found["attempt"]) == (77, 3, 1)
    assert (found["extra_pid"], found["extra_attempt"]) == ("me", 5)
    assert "extra_job_id" not in found


async def test_the_levels_that_are_set() -> None:
    logging.getLogger("tests.levels.none").setLevel(logging.NOTSET)
    with handled_by(Kept(), "tests.levels.some", logging.ERROR):
        levels, disabled = explicit_levels()
    assert ("tests.levels.some", logging.ERROR) in levels
    assert ("", logging.getLogger().level) in levels
    assert "tests.levels.none" not in dict(levels)
    assert disabled == 0
