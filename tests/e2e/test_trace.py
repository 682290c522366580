"""A trace of a pool: what it shows of jobs that end in any way, and of faults around it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from asyncpool import Pool
from asyncpool.errors import JobTimeoutError, WorkerCrashedError
from tests.helpers import jobs, several
from tests.helpers.gate import Gate
from tests.helpers.inside import trace_no_more
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves
from tests.helpers.scripts import finish, start_script
from tests.helpers.traces import Traced, read_trace

pytestmark = BOTH_LOOPS

SLOT_0, SLOT_1 = 10_000, 20_000


def whole(path: Path) -> Traced:
    trace = read_trace(path)
    assert trace.whole
    return trace


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_each_job_is_a_slice_of_the_slot_that_ran_it(
    tmp_path: Path, concurrency: int
) -> None:
    path = tmp_path / "trace.json"
    async with patience(), Pool(2, concurrency=concurrency, trace=path) as pool:
        pids = {slot.slot: slot.pid for slot in pool.stats().slots}
        await asyncio.gather(*(pool.submit(jobs.pid_later) for _ in range(1000)))
        await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(1000)))
        pids |= {slot.slot: slot.pid for slot in pool.stats().slots}
    trace = whole(path)
    assert sorted(slice_.args["job"] for slice_ in trace.slices) == [*range(1, 2001)]
    for slice_ in trace.slices:
        slot, lane = slice_.track // 10_000 - 1, slice_.track % 10_000
        assert lane < concurrency
        assert slice_.args["outcome"] == "ok"
        assert slice_.args["worker"] == pids[slot]
        (wait,) = trace.waits[slice_.args["job"]]
        assert wait.end is not None
        assert wait.begin <= wait.end == slice_.begin
    assert len(trace.arrows) == 2000
    assert all(len(arrows) == 1 for arrows in trace.arrows.values())
    assert {trace.names[SLOT_0], trace.names[SLOT_1]} == {"slot 0", "slot 1"}


async def test_jobs_of_one_worker_at_once_are_in_lanes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    async with patience(), Gate() as gate, Pool(1, concurrency=3, trace=path) as pool:
        three = [pool.submit(several.at, gate.path, word) for word in "abc"]
        visitors = [await gate.visitor(word) for word in "abc"]
        for visitor in visitors:
            visitor.release()
        await asyncio.gather(*three)
    trace = whole(path)
    assert {slice_.track for slice_ in trace.slices} == {SLOT_0, SLOT_0 + 1, SLOT_0 + 2}


async def test_how_jobs_end_and_a_crash_is_an_instant_with_what_its_worker_wrote(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.json"
    async with patience(), Gate() as gate, Pool(1, trace=path) as pool:
        with pytest.raises(ZeroDivisionError):
            await pool.submit(jobs.divide, 1, 0)
        with pytest.raises(JobTimeoutError):
            await pool.options(timeout=0.05).submit(jobs.stay, 60.0)
        job = pool.submit(jobs.wait_at, gate.path)
        await gate.visitor()
        queued = pool.submit(jobs.square, 2)
        queued.cancel()
        job.cancel()
        twice = pool.options(max_attempts=2)
        job = twice.submit(jobs.wait_in_every_attempt, gate.path)
        os.kill((await gate.visitor("attempt 1")).pid, signal.SIGKILL)
        (await gate.visitor("attempt 2")).release()
        await job
        thrice = pool.options(max_attempts=3, retry_on=(LookupError,))
        await thrice.submit(jobs.fail_before_attempt_3, 1)
        pid = await pool.submit(jobs.pid)
        with pytest.raises(WorkerCrashedError):
            await pool.submit(jobs.call, complain_and_leave)
        await pool.submit(jobs.square, 2)
    trace = whole(path)
    shown = {
        job: [attempt.args["outcome"] for attempt in trace.of_job(job)]
        for job in range(1, 10)
    }
    assert shown == {
        1: ["raised"],
        2: ["timeout"],
        3: ["cancelled"],
        4: [],
        5: ["taken over", "ok"],
        6: ["retry", "retry", "ok"],
        7: ["ok"],
        8: ["crashed"],
        9: ["ok"],
    }
    # Arrows lead from each wait to its attempt, and from there to the next wait.
    assert [len(it) for it in trace.arrows.values()] == [1, 1, 1, 3, 5, 1, 1, 1]
    for number in (5, 6):
        times = []
        pairs = zip(trace.waits[number], trace.of_job(number), strict=True)
        for wait, attempt in pairs:
            assert wait.end is not None
            assert attempt.end is not None
            times += [wait.begin, wait.end, attempt.begin, attempt.end]
        assert times == sorted(times)
    assert {slice_.track for slice_ in trace.slices} == {SLOT_0}
    assert [wait.args["then"] for wait in trace.waits[4]] == ["cancelled"]
    *_, crash = [instant for instant in trace.instants if instant["name"] == "crashed"]
    assert (crash["tid"], crash["args"]["worker"]) == (SLOT_0, pid)
    assert crash["args"]["exit_code"] == 3
    assert "the disk is on fire" in crash["args"]["stderr"]
    *_, first, second = trace.slices
    assert first.args["worker"] == pid != second.args["worker"]
    spawned = [i for i in trace.instants if i["name"] == "spawned"]
    assert [i["args"]["generation"] for i in spawned] == [1, 2, 3]
    assert trace.counters.keys() == {
        "queued jobs",
        "busy workers",
        "memory of the workers",
        "jobs not shown",
    }


def complain_and_leave() -> None:
    print("the disk is on fire", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(3)


async def test_of_too_many_jobs_a_part_is_shown_and_all_that_fail(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.json"
    async with patience(), Gate() as gate, Pool(1, trace=path) as pool:
        for _ in range(3):
            await pool.submit(jobs.square, 2)
        trace_no_more(pool)
        await asyncio.gather(*(pool.submit(jobs.square, 2) for _ in range(50)))
        with pytest.raises(ZeroDivisionError):
            await pool.submit(jobs.divide, 1, 0)  # job 54
        with pytest.raises(JobTimeoutError):
            await pool.options(timeout=0.05).submit(jobs.stay, 60.0)
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        job = pool.options(max_attempts=2).submit(jobs.wait_in_every_attempt, gate.path)
        os.kill((await gate.visitor("attempt 1")).pid, signal.SIGKILL)
        (await gate.visitor("attempt 2")).release()
        await job
        again = pool.options(max_attempts=3, retry_on=(LookupError,))
        await again.submit(jobs.fail_before_attempt_3, 1)
        holder = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        with pytest.raises(JobTimeoutError):
            await pool.options(queue_timeout=0.01).submit(jobs.square, 2)  # job 60
        visitor.release()
        await holder
    trace = whole(path)
    shown = {
        job: [s.args["outcome"] for s in trace.of_job(job)] for job in range(1, 61)
    }
    assert {job: outcomes for job, outcomes in shown.items() if outcomes} == {
        **{key: ["ok"] for key in (1, 2, 3)},
        54: ["raised"],
        55: ["timeout"],
        56: ["crashed"],
        57: ["taken over", "ok"],
        58: ["retry", "retry", "ok"],
    }
    assert [wait.args["then"] for wait in trace.waits[60]] == ["timeout"]
    assert trace.waits.keys() == {1, 2, 3, *range(54, 59), 60}
    assert trace.counters["jobs not shown"][-1] == 51


SERVICE = """
    import asyncio, time
    from asyncpool import Pool

    def square(n):
        return n * n

    async def main():
        async with Pool(5, trace="trace.json") as pool:
            await asyncio.gather(*(pool.submit(square, n) for n in range(500)))
            long = pool.submit(time.sleep, 600)
            queued = [pool.submit(time.sleep, 600) for _ in range(3)]
            while True:
                await pool.submit(square, 2)

    if __name__ == "__main__":
        asyncio.run(main())
"""


def long_jobs(path: Path) -> list[str]:
    """Return the lines of jobs that run for long, as far as they are written."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if '"ph":"B"' in line and '"time.sleep"' in line]


async def test_what_a_killed_service_leaves_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    service = start_script(tmp_path, SERVICE)
    try:
        async with patience():
            # Its long jobs, which are not over.
            while len(long_jobs(path)) < 4:
                await asyncio.to_thread(os.sched_yield)
    finally:
        os.killpg(service.pid, signal.SIGKILL)
        finish(service)
    trace = read_trace(path, killed=True)
    assert not trace.whole
    assert len(trace.slices) >= 504
    endless = [s for s in trace.slices if s.end is None and s.name == "time.sleep"]
    assert {slice_.args["job"] for slice_ in endless} == {501, 502, 503, 504}


async def test_a_trace_that_cannot_be_written_is_an_error_of_the_start(
    tmp_path: Path,
) -> None:
    pool = Pool(1, name="shop", trace=tmp_path / "nowhere" / "trace.json")
    text = (
        f"[Errno 2] No such file or directory: pool shop cannot write its trace; name "
        f"another file by trace, or leave trace out: '{tmp_path}/nowhere/trace.json'"
    )
    with pytest.raises(FileNotFoundError) as caught:
        await pool.start()
    assert str(caught.value) == text
    (tmp_path / "nowhere").mkdir()
    async with patience(), pool:
        await assert_serves(pool)
    assert whole(tmp_path / "nowhere" / "trace.json").slices


async def test_a_file_that_may_not_grow_has_whole_lines(tmp_path: Path) -> None:
    source = """
        import asyncio, resource
        from asyncpool import Pool

        def square(n):
            return n * n

        async def main():
            async with Pool(1, name="shop", trace="trace.json") as pool:
                await pool.submit(square, 1)
                resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
                found = await asyncio.gather(*(pool.submit(square, n) for n in range(999)))
                print(sum(found))

        if __name__ == "__main__":
            asyncio.run(main())
    """
    service = start_script(tmp_path, source)
    out, err = finish(service)
    assert (service.returncode, out) == (0, f"{sum(n * n for n in range(999))}\n")
    assert err == (
        "the trace of pool shop ends here, since trace.json cannot be written: "
        "File too large; the pool goes on without it\n"
    )
    text = (tmp_path / "trace.json").read_text()
    assert text.endswith(",\n")
    assert 49_000 < len(text) <= 50_000
