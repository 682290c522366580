"""Events: each can be told from the others, and a checker knows when one is missing."""

from __future__ import annotations

from typing import assert_never, assert_type

from asyncpool import Crash, EventStream, LeaseKeeper, Pool, events
from asyncpool.enums import CrashKind, JobOutcome, NextStep
from asyncpool.events import Event, LeaseEvent


async def accepted(pool: Pool) -> None:
    stream = pool.events(buffer=10)
    assert_type(stream, EventStream[Event])
    assert_type(stream.dropped, int)
    assert_type(await anext(stream), Event)
    async for event in stream:
        match event:
            case events.Crashed(crash):
                assert_type(crash, Crash)
            case events.Restarting(slot, delay):
                assert_type((slot, delay), tuple[int, float])
            case events.Broken(reason=reason, crashes=crashes):
                assert_type(reason, str)
                assert_type(crashes, tuple[Crash, ...])
            case events.Spawned() | events.Ready():
                assert_type(event.pid, int)
            case _:
                print(event)
        if isinstance(event, events.Parked):
            assert_type(event.probe_in, float | None)


def every_event(event: Event) -> int | None:
    match event:
        case (
            events.Spawned()
            | events.Ready()
            | events.Exited()
            | events.Retiring()
            | events.Restarting()
            | events.Parked()
            | events.Recovered()
        ):
            return event.slot
        case events.Crashed(crash):
            return crash.slot
        case events.TakenOver(job_id):
            return job_id
        case events.Resized(workers):
            return workers
        case events.QueueFull(waiting):
            return waiting
        case events.Broken() | events.QueueEmptied():
            return None
        case _:
            assert_never(event)


async def of_leases(keeper: LeaseKeeper[str]) -> None:
    assert_type(keeper.events(), EventStream[LeaseEvent])
    async for event in keeper.events(buffer=3):
        match event:
            case events.LeaseLost(lease) | events.LeaseThrottled(lease):
                print(hash(lease))
            case events.LeaseLapsed(lease, gap):
                assert_type(gap, float)
            case events.LeaseRelieved():
                assert_type(event.capacity, int)
            case events.LeaseMissed(gap=gap, error=error):
                assert_type(gap, float)
                assert_type(error, BaseException | None)
            case events.LeaseSaturated():
                assert_type(event.worst_gap, float)
            case _:
                assert_never(event)


def crash(crash: Crash) -> None:
    assert_type(crash.kind, CrashKind)
    assert_type(crash.pid, int | None)
    assert_type(crash.exit_code, int | None)
    assert_type(crash.signal, str | None)
    assert_type(crash.job_id, int | None)
    assert_type(crash.stderr_tail, tuple[str, ...])
    assert_type(crash.how, str)
    match crash.kind:
        case CrashKind.CRASH | CrashKind.FAILED_START | CrashKind.OUT_OF_MEMORY:
            pass
        case CrashKind.HUNG | CrashKind.PROTOCOL:
            text: str = crash.kind
            print(text)
        case _:
            assert_never(crash.kind)
    assert_type(crash.next_step, NextStep)
    assert_type(crash.next_step_text, str)
    assert_type(crash.next_start, float | None)
    assert_type(crash.park_reason, str)


def rejected(pool: Pool, event: Event, crash: Crash) -> None:
    pool.events(10)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    for one in pool.events():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        print(one)
    print(event.pid)  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    assert_never(event)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def rejected_of_crashes(crash: Crash) -> None:
    crash.slot = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    crash.stderr_tail.append("")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    print(crash.kind is CrashKind.OOM)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    print(crash.pid + 1)  # type: ignore[operator]  # pyright: ignore[reportOptionalOperand]


async def of_jobs(pool: Pool) -> None:
    stream = pool.job_events(buffer=10)
    assert_type(stream, EventStream[events.Event | events.JobEvent])
    async for event in stream:
        match event:
            case events.JobQueued(function=function, via=via):
                assert_type(function, str)
                assert_type(via, events.Via)
            case events.JobEnded(outcome=outcome, wait=wait):
                assert_type(outcome, JobOutcome)
                assert_type(wait, float)
            case _:
                pass

    def hear(event: events.Event) -> None:
        assert_type(event, events.Event)

    pool.add_listener(hear)
    pool.add_job_listener(hear)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(pool.remove_listener(hear), int)
