"""Parts of a pool that was never started: who gets in, what its end says, how jobs are lost.

All parts are real, the core too: what a test wants to see, it has the core come to.
"""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asyncpool import Pool, RestartPolicy
from asyncpool._core.base.job_traits import JobTraits, KeyedTraits
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.slots.commands import Command, Spawn
from asyncpool._core.slots.lifecycle import WANTED_AGAIN
from asyncpool._core.slots.slots import Slot
from asyncpool._core.supervision.closing import Finish
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.channel.outbox import NOT_PUT
from asyncpool._runtime.job.chunk_job import ChunkJob
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.job.stream_job import StreamJob
from asyncpool._runtime.pool.supervisor import BulkFailure, Supervisor
from asyncpool._runtime.state import crash_report
from asyncpool._runtime.state.crash_report import AfterExit, CrashReporter
from asyncpool._runtime.state.draining import MapHold
from asyncpool._runtime.state.job_errors import crash_error, delivery_of
from asyncpool._runtime.traffic.stack_dump import MAX_TEXT, LiveStacks
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import Delivery, NextStep
from asyncpool.errors import (
    PoolBrokenError,
    PoolClosedError,
    PoolFullError,
    ProtocolError,
)
from tests.helpers import virtual_time
from tests.helpers.crashes import crash_with
from tests.helpers.functions import known_function
from tests.helpers.inside import affinity_queues_of, config_of
from tests.helpers.owner import Owner
from tests.helpers.patience import patience

pytestmark = pytest.mark.asyncio

ANYBODY = JobOptions()
POLICY = RestartPolicy(initial_delay=100.0, max_delay=100.0, max_failed_starts=1)


class Parts:
    """The parts of the pool *x*; what they have to carry out is noted, and stays undone.

    Attributes:
        performed: The commands of each call.
        rearmed: How often the timer was set anew.
    """

    def __init__(self, **options: Any) -> None:
        options = {"ping_timeout": None, "name": "x", **options}
        parts = Supervisor(config_of(Pool(**options)), PoolHub())
        parts.state.performer = cast("Supervisor", self)
        self.state, self.core = parts.state, parts.state.core
        self.registry = self.state.registry
        self.admission, self.draining = parts.admission, parts.draining
        self.now = self.state.loop.time()
        self.performed: list[list[Command]] = []
        self.rearmed = 0
        self._queued: list[int] = []

    def perform(self, commands: list[Command]) -> None:
        self.performed.append(commands)

    def rearm(self) -> None:
        self.rearmed += 1

    def queue(self, count: int) -> None:
        """Have so many more jobs wait, since there is no worker."""
        first = 1_000_000 + self.core.waiting
        jobs = range(first, first + count)
        assert all(self.core.jobs.submit(job, JobTraits()) is None for job in jobs)
        self._queued += jobs

    def relieve(self) -> None:
        """Have all of them leave."""
        while self._queued:
            self.core.jobs.drop(self._queued.pop(), self.now)
        self.admission.update_saturated()

    async def refuse(self) -> asyncio.Task[None]:
        """Refuse a job, and return who waits for room."""
        with pytest.raises(PoolFullError):
            self.admission.check(ANYBODY)
        waiter = asyncio.create_task(self.admission.room())
        await asyncio.sleep(0)
        return waiter

    def break_starts(self) -> None:
        """Have the start of the only worker fail, which is one too many."""
        self.core.workers.start(self.now)
        self.core.workers.ended(0, self.now, started=False, requeue=(), jitter=0.0)
        assert self.core.broken is not None

    def succeed(self) -> None:
        """Have the next start succeed, whatever was before."""
        self.core.on_timer(self.now + 3600.0)
        self.core.workers.ready(0, self.now + 3600.0)
        assert self.core.broken is None

    def add(self, kind: type[Job[Any]] = Job, name: str = "f") -> Job[Any]:
        """Return one more job, which is open."""
        loop, number = asyncio.get_running_loop(), self.registry.next_id()
        job = kind(number, known_function(name), ANYBODY, Owner(), loop)
        self.registry.enter(job)
        return job


# Who gets in.


async def test_for_whom_a_worker_is_idle_does_not_wait() -> None:
    parts = Parts(workers=2, max_queued=1)
    for command in parts.core.workers.start(parts.now):
        assert isinstance(command, Spawn)
        parts.core.workers.ready(command.slot, parts.now)
    slot_of = affinity_queues_of(parts.core).slot_of
    keys = {slot_of(key): key for key in range(100)}
    assert keys.keys() == {0, 1}
    for job in range(6):  # the first one runs
        parts.core.jobs.submit_keyed(job, KeyedTraits(JobTraits(), keys[0]), 0)
    assert parts.core.waiting == 5
    parts.admission.check(JobOptions(key=keys[1]))
    with pytest.raises(PoolFullError):
        parts.admission.check(JobOptions(key=keys[0]))


async def test_a_pool_that_drains_admits_only_for_those_who_hold_it_open() -> None:
    parts, hold, other = Parts(), MapHold("f"), MapHold("f")
    parts.core.hold()
    parts.core.close(Finish.ALL, None, parts.now)
    hold.take(lambda _: None)
    parts.admission.check(JobOptions(hold=hold))
    hold.release()
    for late in (hold, other):
        with pytest.raises(PoolClosedError):
            parts.admission.check(JobOptions(hold=late))
    hold.take(lambda _: None)
    parts.core.close(Finish.RUNNING, None, parts.now)
    with pytest.raises(PoolClosedError):
        parts.admission.check(JobOptions(hold=hold))


async def test_a_broken_pool_tries_again_for_whom_it_refuses() -> None:
    parts = Parts(workers=1, restart_policy=POLICY)
    parts.break_starts()
    with pytest.raises(PoolBrokenError) as info:
        parts.admission.check(ANYBODY)
    assert info.value.reason == "the start failed"
    assert info.value.retry_after is not None
    # The core is told that somebody wants to come in, and the timer is set to that.
    assert 0 <= info.value.retry_after <= WANTED_AGAIN < POLICY.initial_delay
    assert parts.rearmed == 1


async def test_who_finds_the_queue_full_again_waits_on() -> None:
    parts = Parts(workers=1, max_queued=1)
    await parts.admission.room()  # it was never full
    parts.queue(1)
    waiter = await parts.refuse()
    parts.relieve()
    parts.queue(1)
    with pytest.raises(PoolFullError):
        parts.admission.check(ANYBODY)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiter.done()
    parts.relieve()
    async with patience():
        await waiter


@pytest.mark.parametrize("end", ["the last map lets go", "the pool ends"])
async def test_where_nobody_may_wait_there_is_no_room_while_it_drains(end: str) -> None:
    parts = Parts(workers=1, max_queued=0)
    waiter = await parts.refuse()
    parts.core.hold()
    parts.core.close(Finish.ALL, None, parts.now)
    parts.admission.update_saturated()
    assert parts.admission.saturated
    if end == "the pool ends":
        parts.admission.wake_all()
    else:
        parts.core.release(parts.now)
        parts.admission.update_saturated()
    async with patience():
        await waiter


# What its end says.


@pytest.mark.logs("close-is-slow")
async def test_every_ten_seconds_it_says_what_it_waits_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async def pass_by(seconds: float) -> None:
            over = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(seconds, over.set_result, None)
            await over

        parts = Parts()
        hold = MapHold("app.each")
        hold.under_way = 12
        parts.draining.hold(hold)
        for kind, name in ((Job, "work"), (ChunkJob, "each"), (StreamJob, "read")):
            parts.add(kind, f"app.{name}")
        parts.add(StreamJob, "app.left")._credit = 0
        parts.queue(2)
        await pass_by(30)
        assert caplog.messages == []
        parts.draining.begin()
        parts.draining.begin()
        await pass_by(15)
        parts.registry.jobs.clear()
        hold.release()
        await pass_by(10)
        parts.draining.stop()
        await pass_by(30)

    await asyncio.to_thread(virtual_time.run, main())
    assert caplog.messages == [
        (
            "pool x has been closing for 10 s: waiting for 4 jobs, 2 of them in the queue "
            "(1 x app.work, 1 x app.each, 1 x app.read (a stream), "
            "1 x app.left (a stream that nobody reads)); a map of app.each, 12 items under way"
        ),
        "pool x has been closing for 20 s: waiting for its workers to end",
    ]


@pytest.mark.logs("jobs-unheard")
async def test_jobs_that_end_with_the_pool_are_told_of_if_nobody_waits_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = Parts()
    jobs = [parts.add(name=name) for name in ("f", "f", "g", "g", "h")]
    jobs[0].add_done_callback(lambda _: None)
    parts.registry.fail(jobs[4], ZeroDivisionError())
    assert isinstance(jobs[4].exception(), ZeroDivisionError)
    parts.registry.fail_all(PoolClosedError())
    parts.draining.stop()
    [message] = caplog.messages
    assert message == (
        "pool x was closed before 3 of its jobs were done, and nobody waited for them "
        "(2 x g, 1 x f)"
    )


async def test_a_map_holds_a_pool_open_until_all_is_drawn_and_done() -> None:
    parts, hold = Parts(), MapHold("app.each")
    parts.draining.hold(hold)
    hold.begin()
    hold.done()
    assert hold.held, "there may be more to come"
    hold.begin()
    hold.drawn()
    assert (hold.held, parts.performed) == (True, [])
    hold.done()
    hold.release()
    assert (hold.held, parts.performed) == (False, [[]])
    parts.core.close(Finish.ALL, None, 0.0)
    late = MapHold("app.each")
    parts.draining.hold(late)
    assert not late.held
    late.release()
    assert len(parts.performed) == 1


async def test_a_record_is_made_in_the_next_turn_and_only_if_its_level_is_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = Parts()
    for level, expected in ((logging.INFO, 0), (logging.DEBUG, 1)):
        caplog.set_level(level, "asyncpool")
        parts.state.log.size_changed(3)
        assert caplog.messages == [], "not in the middle of a decision"
        await asyncio.sleep(0)
        assert len(caplog.messages) == expected


# How jobs are lost.


class DeadWorker:
    """One that has taken so many of the bytes that were put for it; its page and outbox, too."""

    loading = killed = broke_protocol = lacked_memory = final = False
    status = -9
    detail = traceback = silence = late_stacks = ""
    slot = generation = pid = 1
    began_at = 0.0
    stderr_tail = ()

    def __init__(self, taken: int = 0, begun: int = 0) -> None:
        self.taken = taken
        self.page = self.outbox = self
        self._begun = begun

    def begun(self, job: int, attempt: int) -> bool:
        return (job, attempt) == (self._begun, 1)


@pytest.mark.parametrize(
    ("taken", "begun", "expected"),
    [
        (99, 0, ["never sent", "never sent", "never sent"]),
        (100, 0, ["sent", "never sent", "never sent"]),
        (100, 1, ["started", "never sent", "never sent"]),
        # Half a frame is of no use to the worker.
        (299, 0, ["sent", "sent", "never sent"]),
        (1 << 40, 0, ["sent", "sent", "sent"]),
    ],
)
async def test_how_far_jobs_have_come(
    taken: int, begun: int, expected: list[str]
) -> None:
    worker, parts = cast("WorkerHandle", DeadWorker(taken, begun)), Parts()
    jobs = [parts.add() for _ in range(4)]
    for job, end in zip(jobs, (100, 200, 300, NOT_PUT), strict=True):
        job.attempt, job._frame_end = 1, end
    assert [delivery_of(job, worker) for job in jobs] == [*expected, "never sent"]


async def test_stacks_have_a_bound_and_are_dropped_where_nobody_waits() -> None:
    nobody: Any = None
    LiveStacks(nobody).answered(nobody, 0, b"x" * MAX_TEXT)
    with pytest.raises(ProtocolError, match=r"^it sent stacks of 65537 bytes$"):
        LiveStacks(nobody).answered(nobody, 0, b"x" * (MAX_TEXT + 1))


async def test_an_earlier_attempt_may_have_had_effects_too() -> None:
    job = Parts().add()
    job._crashes = (crash_with(),)
    for begun, expected in enumerate(("sent", "started")):
        job.attempt = begun
        assert crash_error(job, Delivery.SENT).delivery == expected


async def test_whom_the_kernel_has_killed_lacked_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int | None] = [3]
    kernel = SimpleNamespace(count=lambda: counted[0])
    monkeypatch.setattr(crash_report, "OomKills", lambda: kernel)
    reporter, slot = CrashReporter(start_timeout=30.0), Slot(0, ready_at=1.0)

    def kind(now: float, *, slot: Slot = slot, **worker: Any) -> str:
        dead = DeadWorker()
        vars(dead).update(worker)
        return reporter.kind_of(cast("WorkerHandle", dead), slot, now)

    assert kind(7.0) == "crash", "somebody else has killed it"
    assert kind(7.0, lacked_memory=True) == "out of memory", "its own cgroup says so"
    # Several may lack memory together, and one that the pool has killed is none of them.
    counted[0] = 6
    assert kind(7.1) == "out of memory"
    reporter.look(7.1)  # its successor is there
    assert kind(7.2, slot=Slot(1)) == "failed start"
    assert kind(7.2, killed=True) == kind(7.2, status=3) == "crash"
    assert [kind(7.3), kind(7.3)] == ["out of memory", "crash"]


@pytest.mark.parametrize(
    ("count", "detail"),
    [(3, ""), (None, "not by the pool; perhaps there was no memory left")],
)
async def test_where_nobody_counts_it_may_have_been_memory(
    count: int | None, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = SimpleNamespace(count=lambda: count)
    monkeypatch.setattr(crash_report, "OomKills", lambda: kernel)
    reporter, worker = CrashReporter(30.0), cast("WorkerHandle", DeadWorker())
    crash = reporter.report(
        worker,
        kind=reporter.kind_of(worker, Slot(0, ready_at=1.0), 1.0),
        planned=False,
        jobs=[],
        killed_for=None,
        now=2.0,
        after=AfterExit(NextStep.CLOSE),
    )
    assert (crash.kind, crash.detail, crash.signal) == ("crash", detail, "SIGKILL")


async def test_many_are_failed_some_in_each_turn_as_they_were_known_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncpool._runtime.pool.supervisor._FAILED_A_TURN", 2)
    parts = Parts(workers=1, restart_policy=POLICY)
    async with patience(), asyncio.TaskGroup() as tasks:
        jobs = [parts.add() for _ in range(7)]
        parts.break_starts()
        parts.state.crashes.append(crash_with())
        failure = BulkFailure(parts.state, tasks)
        failure.fail(tuple(job.id for job in jobs), "broken")
        parts.succeed()
        done = [sum(job.done() for job in jobs)]
        jobs[6].cancel()  # in the meantime
        for _ in range(2):
            await asyncio.sleep(0)
            done.append(sum(job.done() for job in jobs[:6]))
        assert done == [2, 4, 6]
    assert not parts.registry.jobs
    for job in jobs[:6]:
        error = job.exception()
        assert isinstance(error, PoolBrokenError)
        assert error.reason == "the start failed"
        assert error.retry_after is not None
        assert 0 < error.retry_after <= 100
