"""What anyio documents of ``to_process.run_sync``, and a crash."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_process
import psutil
import pytest
import pytest_asyncio

import asyncpool
from asyncpool import Pool, to_process
from asyncpool.events import Parked
from tests.helpers import jobs, large, values
from tests.helpers.gate import Gate
from tests.helpers.inside import resident_pool
from tests.helpers.loops import BOTH_LOOPS, EACH_LOOP, loop_factories
from tests.helpers.patience import patience
from tests.helpers.pools import broken_by, next_of
from tests.helpers.scripts import finish, start_script
from tests.helpers.waiting_room import WaitingRoom

LOOPS = loop_factories()
Test = TypeVar("Test", bound=Callable[..., Any])


@pytest.fixture(params=EACH_LOOP)
def run(request: pytest.FixtureRequest) -> Any:
    """Run a coroutine function in a loop of its own, since the pool ends with it."""

    def in_loop(main: Any) -> Any:
        async def patient() -> Any:
            async with patience():
                return await main()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(patient())

    return in_loop


@pytest_asyncio.fixture
async def resident() -> AsyncIterator[None]:
    """Close what the calls of a test are made in: left to itself, it would end with the loop."""
    yield
    async with patience():
        await resident_pool().close()


def in_loop(test: Test) -> Test:
    """Have a test that makes calls run in an event loop."""
    marked: Test = BOTH_LOOPS(pytest.mark.usefixtures("resident")(test))
    return marked


# How the paths of its modules begin, wherever that is.
PACKAGE = f"{Path(asyncpool.__file__).parent}{os.sep}"


@in_loop
async def test_it_returns_or_raises_what_the_function_does() -> None:
    call: Any = to_process.run_sync
    pid = await call(jobs.pid)
    assert pid != os.getpid()
    assert await call(jobs.square, 5) == 25
    with pytest.raises(LookupError, match="nothing there"):
        await call(jobs.throw, LookupError("nothing there"))
    # A cancellation of its own is not that of its caller.
    with pytest.raises(asyncpool.errors.JobRaisedError) as caught:
        await call(jobs.throw, asyncio.CancelledError("mine"))
    assert type(caught.value.exception) is asyncio.CancelledError
    with pytest.raises(asyncpool.errors.JobNotPicklableError, match=r"args\[0\]"):
        await call(id, threading.Lock())
    for error in (GeneratorExit("g"), asyncio.CancelledError("c")):
        with pytest.raises(asyncpool.errors.JobNotPicklableError) as refused:
            await call(jobs.take, values.ExplodesHere(error))
        assert refused.value.__cause__ is error
    limiter = anyio.CapacityLimiter(1)
    async with limiter:  # which nobody waits for with what cannot be sent
        with pytest.raises(asyncpool.errors.JobNotPicklableError, match=r"args\[0\]"):
            await call(id, threading.Lock(), limiter=limiter)
    with anyio.CancelScope() as scope:
        scope.cancel()  # before the call begins
        await call(jobs.pid)
    assert scope.cancelled_caught
    assert await call(jobs.pid) == pid


def test_it_raises_what_anyio_raises(run: Any) -> None:
    async def outcome(run_sync: Any, kind: type[BaseException]) -> BaseException:
        try:
            await run_sync(jobs.throw, kind(3))
        except BaseException as error:  # noqa: BLE001 - that is what it is about
            return error
        raise AssertionError("nothing was raised")

    async def main() -> None:
        for kind in (KeyboardInterrupt, GeneratorExit, StopIteration, SystemExit):
            error = await outcome(to_process.run_sync, kind)
            theirs = await outcome(anyio.to_process.run_sync, kind)
            assert (type(error), error.args) == (type(theirs), theirs.args)
            assert error.__context__ is error.__cause__ or error.__context__ is None
            raised = error.__cause__ if kind is StopIteration else error
            assert f" {kind.__name__}: 3\n" in str(raised and raised.__cause__)
            assert PACKAGE not in str(raised and raised.__cause__)
            assert await to_process.run_sync(jobs.square, 3) == 9

    run(main)


def test_who_does_not_catch_an_exit_ends(tmp_path: Path) -> None:
    source = """
        import asyncio, os, sys
        from asyncpool import to_process

        async def main():
            print(await to_process.run_sync(os.getpid), flush=True)
            await to_process.run_sync(sys.exit, 7)

        asyncio.run(main())
        """
    process = start_script(tmp_path, source)
    out, err = finish(process)
    assert (process.returncode, err) == (7, "")
    assert not psutil.pid_exists(int(out))


@in_loop
async def test_a_call_that_is_cancelled_takes_its_worker_along() -> None:
    async def cancel_at(gate: Gate, scope: anyio.CancelScope) -> None:
        await gate.visitor()
        scope.cancel()

    async with Gate() as gate, anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(cancel_at, gate, scope)
            await to_process.run_sync(jobs.wait_at, gate.path, cancellable=True)
        assert scope.cancelled_caught
        await (await gate.visitor()).gone()
        assert await to_process.run_sync(jobs.square, 3) == 9


@in_loop
@pytest.mark.parametrize("native", [False, True])
async def test_a_call_is_waited_for_unless_it_may_be_cancelled(
    native: bool,  # noqa: FBT001
) -> None:
    async with Gate() as gate:
        ended: list[str] = []
        scope = anyio.CancelScope()

        async def wait() -> None:
            with scope:
                try:
                    ended.append(await to_process.run_sync(jobs.wait_at, gate.path))
                finally:
                    ended.append("end")

        task = asyncio.create_task(wait())
        visitor = await gate.visitor()
        task.cancel() if native else scope.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ended
        visitor.release()
        await asyncio.wait([task])
        assert task.cancelled() == native
        assert ended == (["end"] if native else ["go", "end"])


@in_loop
async def test_the_limiter_is_the_limit() -> None:
    default = anyio.to_process.current_default_process_limiter()
    assert to_process.current_default_process_limiter() is default
    limiter = anyio.CapacityLimiter(3)
    async with Gate() as gate, anyio.create_task_group() as group:

        async def call() -> None:
            await to_process.run_sync(jobs.wait_at, gate.path, limiter=limiter)

        for _ in range(4):
            group.start_soon(call)
        first = [await gate.visitor(nth=n) for n in (1, 2, 3)]
        assert len({visitor.pid for visitor in first}) == 3
        assert limiter.borrowed_tokens == 3
        assert limiter.statistics().tasks_waiting == 1
        group.start_soon(to_process.run_sync, jobs.wait_at, gate.path, "default")
        visitor = await gate.visitor("default")
        assert default.borrowed_tokens == 1
        for each in (visitor, *first):
            each.release()
        (await gate.visitor(nth=4)).release()


@in_loop
async def test_a_worker_that_does_not_start_concerns_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = tmp_path / "poison"
    monkeypatch.setattr(
        to_process, "Pool", functools.partial(Pool, **broken_by(poison))
    )
    limiter = anyio.CapacityLimiter(9)
    call = functools.partial(to_process.run_sync, limiter=limiter)
    async with Gate() as gate:
        held = asyncio.create_task(call(jobs.wait_at, gate.path))
        visitor = await gate.visitor()
        events = resident_pool().events()
        poison.touch()
        first = asyncio.create_task(call(jobs.square, 2))
        await next_of(events, Parked)
        second = asyncio.create_task(call(jobs.square, 3))  # has it grow further
        while limiter.borrowed_tokens < 3:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        visitor.release()
        assert await held == "go"
        assert [await first, await second] == [4, 9]


@in_loop
async def test_a_crash_is_that_of_one_call() -> None:
    with pytest.raises(anyio.BrokenWorkerProcess) as caught:
        await to_process.run_sync(os._exit, 3)
    assert await to_process.run_sync(jobs.square, 3) == 9
    error = caught.value
    assert isinstance(error, asyncpool.errors.WorkerCrashedError)
    assert error.exit_code == 3
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


async def waits_for(limiter: anyio.CapacityLimiter, *what: Any) -> asyncio.Task[Any]:
    call = asyncio.create_task(to_process.run_sync(*what, limiter=limiter))
    while not limiter.statistics().tasks_waiting:
        assert not call.done()
        await asyncio.sleep(0)
    return call


@in_loop
@pytest.mark.parametrize("closure", [False, True])
async def test_what_is_sent_is_what_it_was_at_the_call(*, closure: bool) -> None:
    limiter = anyio.CapacityLimiter(1)
    items = [1]
    what = (lambda: sum(items),) if closure else (sum, items)
    async with limiter:
        call = await waits_for(limiter, *what)
        items.append(2)
    assert await call == 1


@in_loop
@pytest.mark.parametrize("kind", [bytes, large.Block])
async def test_what_is_large_is_pickled_when_it_is_its_turn(kind: Any) -> None:
    limiter = anyio.CapacityLimiter(1)
    value = kind(bytes(300_000))
    assert await to_process.run_sync(large.same, value) == value
    async with limiter:
        call = await waits_for(limiter, jobs.pair, bytes(300_000), threading.Lock())
    with pytest.raises(asyncpool.errors.JobNotPicklableError, match=r"args\[1\]"):
        await call


def test_the_pool_ends_with_the_loop_and_each_loop_has_its_own(run: Any) -> None:
    async def main() -> int:
        return await to_process.run_sync(jobs.pid)

    first, second = run(main), run(main)
    assert first != second
    assert not psutil.pid_exists(first)


def test_a_loop_that_ends_does_not_wait_for_a_call(run: Any) -> None:
    with WaitingRoom() as room:

        async def main() -> asyncio.Task[str]:
            call = to_process.run_sync(jobs.wait_at, room.path)
            task = asyncio.create_task(call)
            await asyncio.to_thread(room.admit)
            return task

        assert run(main).cancelled()


def test_it_needs_an_event_loop_of_asyncio() -> None:
    trio = pytest.importorskip("trio")
    with pytest.raises(RuntimeError, match="an event loop of asyncio's"):
        trio.run(to_process.run_sync, jobs.pid)


@in_loop
async def test_calls_and_results_have_no_bound_but_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defaults = asyncpool.Pool.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "max_message_size", 1024)
    assert await to_process.run_sync(len, bytes(5000)) == 5000
    assert await to_process.run_sync(bytes, 5000) == bytes(5000)
