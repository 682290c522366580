"""Nothing outlives its pool, however the process that has the pool ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import pytest

import asyncpool
from tests.helpers import jobs
from tests.helpers.gate import short_folder
from tests.helpers.guards import marked_processes
from tests.helpers.loops import BOTH_LOOPS, EACH_LOOP, loop_factories
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.scripts import finish, start_script
from tests.helpers.serving import until

# The promise, in seconds, for when the supervising process was killed.
LIMIT = 1.0

SERVICE = """
    import asyncio, os, sys
    import asyncpool
    from tests.helpers import jobs, loops

    gate, loop, how, *names = sys.argv[1:]


    async def main():
        pool = asyncpool.Pool(len(names))
        await pool.start()
        running = [pool.submit(getattr(jobs, name), gate, name) for name in names]
        if how == "fork":
            if os.fork() == 0:
                jobs.wait_at(gate, "copy")
                os._exit(0)
        elif how == "leave":
            await asyncio.to_thread(sys.stdin.read)
            return
        elif how == "exit":
            await asyncio.to_thread(sys.stdin.read)
            os._exit(0)
        elif how in {"raise", "crash"}:
            async with pool:
                await asyncio.to_thread(sys.stdin.read)
                raise SystemExit(7) if how == "raise" else ZeroDivisionError("mine")
        elif how == "async with":
            async with pool:
                await asyncio.wait(running)
        await asyncio.wait(running)


    try:
        with asyncio.Runner(loop_factory=loops.loop_factories()[loop]) as runner:
            runner.run(main())
    except KeyboardInterrupt:
        print("interrupted")
"""

BUSY = ("sleep", "compute", "hold_the_gil", "backtrack", "refuse_to_end", "daemonize")

loops = pytest.mark.parametrize("loop", EACH_LOOP)


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    params = getattr(request.node, "callspec", None)
    loop = params.params.get("loop", "asyncio") if params is not None else "asyncio"
    if loop not in loop_factories():
        pytest.skip(f"{loop} is not installed")


@dataclass
class Door:
    """What jobs of a script connect to; see :class:`tests.helpers.gate.Gate`."""

    path: str
    listener: socket.socket
    visitors: dict[str, socket.socket]

    def welcome(self, *words: str) -> None:
        """Wait until all of them are there."""
        while not set(words) <= self.visitors.keys():
            visitor, _ = self.listener.accept()
            visitor.settimeout(PATIENCE)
            line = b""
            while not line.endswith(b"\n"):
                line += visitor.recv(1)
            self.visitors[line.decode().rpartition(" ")[0]] = visitor

    def gone(self, deadline: float, *but: str) -> None:
        """Wait until nobody holds a connection any more."""
        for word in self.visitors.keys() - set(but):
            visitor = self.visitors[word]
            visitor.settimeout(max(0.001, deadline - time.monotonic()))
            with suppress(ConnectionError):
                assert visitor.recv(1) == b""


@pytest.fixture
def door() -> Iterator[Door]:
    with short_folder() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "gate"))
        listener.listen()
        listener.settimeout(PATIENCE)
        door = Door(str(folder / "gate"), listener, {})
        yield door
        for visitor in door.visitors.values():
            visitor.close()


# Processes of the tests before, such as the one that commands are forked from.
_there_before: set[int] = set()


@pytest.fixture(autouse=True)
def _note_what_is_there() -> None:
    _there_before.clear()
    _there_before.update(marked_processes())


def nothing_left(deadline: float) -> None:
    """Look at the processes until ours are gone, or the time is over."""
    while left := {
        pid: what
        for pid, what in marked_processes().items()
        if pid not in _there_before
    }:
        assert time.monotonic() < deadline, f"left: {left}"


class Service:
    """The script above, from its start to the moment when its jobs have begun."""

    def __init__(
        self, folder: Path, door: Door, loop: str, how: str, *names: str
    ) -> None:
        self.door = door
        self.process = start_script(
            folder, SERVICE, door.path, loop, how, *names, keep_stdin=True
        )
        door.welcome(*names)

    def leave(self) -> None:
        """Let it go on, to its own end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def ended(self) -> tuple[int, str, str]:
        """Wait for its end; return its status and what it wrote."""
        out, err = finish(self.process)
        return self.process.returncode, out, err

    def killed(self, *, warned: str = "") -> None:
        """Kill it, and check that it leaves nothing behind, and that it was *warned* of before."""
        self.process.kill()
        deadline = time.monotonic() + LIMIT
        self.door.gone(deadline, "copy")
        self.process.wait(PATIENCE)
        if "copy" in self.door.visitors:
            self.door.visitors["copy"].sendall(b"go")
        nothing_left(deadline)
        code, out, err = self.ended()
        assert (code, out) == (-signal.SIGKILL, "")
        # It may have had no time to tell.  No worker had anything to say about it.
        assert err == "" or (warned and err.startswith(warned) and err.count("\n") == 1)


@loops
def test_when_the_supervising_process_is_killed_its_workers_go_too(
    loop: str, tmp_path: Path, door: Door
) -> None:
    """Whatever keeps them busy, and those that are idle."""
    Service(tmp_path, door, loop, "wait", *BUSY, "pass_by").killed()


def test_a_copy_of_the_supervising_process_keeps_nothing_alive(
    tmp_path: Path, door: Door
) -> None:
    """It holds the pool's ends of all channels open, so there is no end of file."""
    service = Service(tmp_path, door, "asyncio", "fork", "sleep", "hold_the_gil")
    door.welcome("copy")
    service.killed()


def test_a_launcher_that_died_before_makes_no_difference(
    tmp_path: Path, door: Door
) -> None:
    service = Service(tmp_path, door, "asyncio", "wait", "sleep", "compute")
    launcher = psutil.Process(service.process.pid).children()[0]
    launcher.kill()
    service.killed(warned=f"the launcher {launcher.pid} is lost: ")


@loops
@pytest.mark.parametrize("how", ["wait", "async with"])
def test_ctrl_c_ends_a_script_cleanly(
    loop: str, how: str, tmp_path: Path, door: Door
) -> None:
    names = ("sleep", "compute", "hold_the_gil")
    service = Service(tmp_path, door, loop, how, *names)
    # What the terminal does: everybody in the foreground gets it.
    os.killpg(service.process.pid, signal.SIGINT)
    code, out, err = service.ended()
    assert (code, out) == (0, "interrupted\n")
    lost = "pool pool-1 was closed before 3 of its jobs were done, and nobody waited"
    assert err.startswith(lost)
    assert err.count("\n") == 1, "and nothing else"
    nothing_left(time.monotonic() + LIMIT)


@loops
@pytest.mark.parametrize(
    ("how", "status"), [("leave", 0), ("exit", 0), ("raise", 7), ("crash", 1)]
)
def test_a_script_that_ends_without_closing_its_pool_leaves_nothing(
    loop: str, how: str, status: int, tmp_path: Path, door: Door
) -> None:
    service = Service(tmp_path, door, loop, how, "sleep", "compute", "hold_the_gil")
    service.leave()
    code, out, err = service.ended()
    nothing_left(time.monotonic() + LIMIT)
    assert (code, out) == (status, "")
    if how == "crash":
        assert err.endswith("ZeroDivisionError: mine\n")
    elif how == "exit":
        assert err == ""
    else:  # its jobs do not vanish without a word
        dropped, said, names = err.partition(
            "pool pool-1 was closed before 3 of its jobs were done, and nobody waited "
            "for them"
        )
        assert said, err
        # Of whoever leaves the context nothing else is told.
        warning = "ResourceWarning: pool pool-1 was dropped without being closed; "
        if how == "leave":
            assert warning in dropped
        else:
            assert dropped == ""
        for name in ("sleep", "compute", "hold_the_gil"):
            assert f"1 x tests.helpers.jobs.{name}" in names


SERVER = """
    import asyncio, sys
    import asyncpool
    from tests.helpers import loops

    loop, spread = sys.argv[1:]


    async def main():
        cluster = asyncpool.Cluster(
            "tests.helpers.serves:talk",
            bind="tcp://127.0.0.1:0",
            workers=2,
            spread=spread,
            worker_loop=loop,
        )
        async with cluster:
            print(cluster.addresses[0], flush=True)
            await cluster.wait()


    with asyncio.Runner(loop_factory=loops.loop_factories()[loop]) as runner:
        runner.run(main())
"""


@loops
@pytest.mark.parametrize("spread", ["handoff", "shared"])
def test_when_the_master_of_a_cluster_is_killed_nobody_serves(
    loop: str, spread: str, tmp_path: Path
) -> None:
    process = start_script(tmp_path, SERVER, loop, spread)
    assert process.stdout is not None
    host, _, port = process.stdout.readline().strip()[6:].rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        client.sendall(b"echo here\n")
        assert client.recv(100) == b"here\n"
        process.kill()
        deadline = time.monotonic() + LIMIT
        process.wait(PATIENCE)
        with suppress(ConnectionError):
            assert client.recv(100) == b""
        nothing_left(deadline)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), PATIENCE)
    _, err = finish(process)
    assert err == ""


CHILD = subprocess.Popen[bytes]


def leave_orphans(number: int) -> list[int]:
    """Start programs in the background, and one that a later job waits for."""
    state = vars(asyncpool.worker_state())
    state["mine"] = subprocess.Popen(["sh", "-c", "exit 7"])
    shell = f"for n in $(seq {number}); do sleep 0.01 & echo $!; done"
    out = subprocess.run(["sh", "-c", shell], capture_output=True, check=True).stdout
    return [int(pid) for pid in out.split()]


def status_of_child() -> int:
    child: CHILD = vars(asyncpool.worker_state())["mine"]
    return child.wait()


@BOTH_LOOPS
@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_orphans_are_collected_and_a_jobs_own_children_are_not(
    launcher: Literal["forkserver", "spawn"],
) -> None:
    async with patience(), asyncpool.Pool(1, launcher=launcher) as pool:
        orphans = await pool.submit(leave_orphans, 100)
        until(lambda: not any(map(psutil.pid_exists, orphans)), "no zombies")
        assert await pool.submit(status_of_child) == 7


@BOTH_LOOPS
async def test_a_daemon_lives_as_long_as_the_worker_that_it_is_from(door: Door) -> None:
    """Whether that ends before or after others, and though all have one parent."""
    async with patience(), asyncpool.Pool(2) as pool:
        slots = await pool.broadcast(begin_daemon, door.path)
        door.welcome(*map(str, slots))
        first, second = slots
        pool.kill(first)
        assert door.visitors[str(first)].recv(1) == b""
        door.visitors[str(second)].setblocking(False)
        with pytest.raises(BlockingIOError):
            door.visitors[str(second)].recv(1)
        pool.kill(second)
        door.gone(time.monotonic() + PATIENCE)


def begin_daemon(gate: str) -> None:
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            jobs.wait_at(gate, str(asyncpool.current_job().slot))
        os._exit(0)
    os.wait()
