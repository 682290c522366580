"""The launcher of workers: what it starts, signals and survives; and a container's first process."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest

from asyncpool import Pool
from asyncpool._engine import launcher, machine
from asyncpool._engine.launcher import Launcher, LaunchError, Process
from asyncpool._wire.frames import FrameDecoder, FrameKind, header
from asyncpool._wire.messages import Identity, WorkerConfig
from asyncpool._wire.page import PageLayout
from tests.helpers.guards import marked_processes
from tests.helpers.inside import config_of
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience

pytestmark = BOTH_LOOPS

EACH = pytest.mark.parametrize("fork", [True, False], ids=["forkserver", "spawn"])


class Ends:
    """The pool's ends of what a worker gets, without a pool."""

    def __init__(self) -> None:
        self.jobs, self._jobs = socket.socketpair()
        self.control, self._control = socket.socketpair()
        self.page = os.memfd_create("page")
        os.ftruncate(self.page, PageLayout(1).size)
        self.out, self._out = os.pipe()
        for sock in (self.jobs, self.control):
            sock.setblocking(False)
        config = WorkerConfig(
            sys_path=tuple(sys.path), initializer=None, max_payload=1 << 20
        )
        identity = Identity("worker-0", 1, (os.getpid(), "main"), b"", None, ())
        told = {FrameKind.IDENTITY: identity, FrameKind.CONFIG: config}
        packed = {kind: pickle.dumps(it) for kind, it in told.items()}
        self._told = b"".join(header(kind, len(it)) + it for kind, it in packed.items())

    @property
    def theirs(self) -> list[int]:
        jobs_fd, control_fd = self._jobs.fileno(), self._control.fileno()
        return [jobs_fd, control_fd, self.page, self._out, self._out]

    def sent(self) -> None:
        """Let go of the worker's ends, and tell it how to begin."""
        self._jobs.close()
        self._control.close()
        os.close(self._out)
        self._out = -1
        self.control.send(self._told)

    async def hello(self) -> FrameKind:
        """Wait for the first word of the worker."""
        decoder = FrameDecoder(max_payload=1 << 20)
        while data := await asyncio.get_running_loop().sock_recv(self.control, 65536):
            for frame in decoder.feed(data):
                return frame.kind
        raise EOFError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self.jobs, self._jobs, self.control, self._control):
            sock.close()
        for fd in (self.page, self.out, self._out):
            if fd >= 0:
                os.close(fd)


def make(*, fork: bool) -> Launcher:
    pool = Pool(1, launcher="forkserver" if fork else "spawn")
    return Launcher(asyncio.get_running_loop(), config_of(pool))


@asynccontextmanager
async def launched(*, fork: bool) -> AsyncIterator[Launcher]:
    found = make(fork=fork)
    try:
        async with patience():
            yield found
    finally:
        await found.close()


async def start(launcher: Launcher, ends: Ends) -> Process:
    process = await launcher.launch(ends.theirs)
    ends.sent()
    assert await ends.hello() is FrameKind.HELLO
    return process


BABBLER = """
import signal, socket, sys
socket.socket(fileno=int(sys.argv[-1])).sendall(b"?" * 64)
signal.pause()
"""


@EACH
async def test_a_launcher_that_breaks_the_protocol_is_killed(
    monkeypatch: pytest.MonkeyPatch, *, fork: bool
) -> None:
    """It may not end by itself, though its channel has ended."""
    monkeypatch.setattr(machine, "_BOOTSTRAP", BABBLER)
    before = marked_processes()
    async with launched(fork=fork) as found:
        with Ends() as worker, pytest.raises(LaunchError, match="version 63"):
            await found.launch(worker.theirs)
        await found.close()
        assert marked_processes() == before


# When it cannot be started.


def refuse(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(
    ("module", "name"), [(socket, "socketpair"), (subprocess, "Popen")]
)
async def test_it_is_tried_again(
    module: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "script.py"
    path.touch()
    loop = asyncio.get_running_loop()
    trouble: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: trouble.append(context))
    found, works = make(fork=True), getattr(module, name)
    refusals = 0

    def refuse_twice(*_: object, **__: object) -> NoReturn:
        nonlocal refusals
        refusals += 1
        if refusals == 2:
            monkeypatch.setattr(module, name, works)
        refuse()

    async with patience():
        with Ends() as own:
            process = await start(found, own)
            before = found._launcher
            monkeypatch.setattr(machine, "main_script", lambda: ("", str(path), ()))
            monkeypatch.setattr(launcher, "_SHORT_LIFE", 0.0)
            monkeypatch.setattr(launcher, "_NEXT_TRY", 0.0)
            monkeypatch.setattr(module, name, refuse_twice)
            found._on_use()
            while found._launcher is before and not trouble:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            process.close()
        await found.close()
    assert (trouble, refusals) == ([], 2)


async def test_what_comes_into_use_before_the_first_start_is_imported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, begun = tmp_path / "script.py", tmp_path / "begun"
    path.write_text(f"import os; open({str(begun)!r}, 'a').write(f'{{os.getpid()}} ')")
    found = make(fork=True)
    monkeypatch.setattr(machine, "main_script", lambda: ("", str(path), ()))
    found._on_use()
    await asyncio.sleep(0)
    async with patience():
        with Ends() as own, Ends() as others:
            both = [await start(found, own), await start(found, others)]
            importers = begun.read_text().split()
            assert found._later is None
            for process in both:
                process.close()
        await found.close()
    assert len(importers) == 1
    assert int(importers[0]) not in [process.pid for process in both]


# Signals.


@pytest.mark.logs("call-refused")
@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EACCES])
async def test_a_signal_is_sent_by_number_only_if_it_must_and_until_the_end_is_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    sent: list[tuple[int, ...]] = []

    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "kill", lambda *call: sent.append(call))
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *call: sent.append(call))
    monkeypatch.setattr(machine, "_told", set[str]())
    fd, other = os.pipe()
    process = Process(asyncio.get_running_loop(), 4711, fd)
    process.signal(15)
    assert sent == [(fd, 15)]
    monkeypatch.setattr(signal, "pidfd_send_signal", fail)
    process.signal(15)
    process.signal(9)
    process.note_end(-9)
    process.signal(9)
    assert sent[1:] == [(4711, 15), (4711, 9)]
    [text] = caplog.messages
    assert text.startswith("pidfd_send_signal is refused here (")
    process.close()
    os.close(other)


@pytest.mark.logs("signal-not-sent")
async def test_a_signal_that_cannot_be_sent_at_all_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [errno.EPERM, errno.ESRCH]  # the latter says that it has just ended

    def fail(*_: object) -> NoReturn:
        raise OSError(errors[0], os.strerror(errors.pop(0)))

    monkeypatch.setattr(os, "kill", fail)
    process = Process(asyncio.get_running_loop(), 4711, None)
    process.signal(9)
    process.signal(9)
    process.close()
    assert caplog.messages == [
        "signal 9 cannot be sent to worker 4711: [Errno 1] Operation not permitted"
    ]


# The first process of a container.

# As long as it has ended and nobody has collected it, a process has its folder there.
WORK = f"""
import os, pathlib, signal, subprocess, sys, time

from asyncpool._cluster.first_process import look_after_orphans
from asyncpool._worker.launcher import adopt_orphans

adopt_orphans()
look_after_orphans()
# What follows is done in the child.

def orphan():
    shell = ["sh", "-c", "true & echo $!"]
    return int(subprocess.run(shell, capture_output=True, check=True).stdout)

def is_gone(pid):
    give_up_at = time.monotonic() + {PATIENCE}
    while pathlib.Path(f"/proc/{{pid}}").exists():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.005)
    return True

own = subprocess.Popen(["sh", "-c", "exit 3"])
print([is_gone(orphan()) for _ in range(3)], own.wait())
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getpgid(0) == os.getpid())
print(os.environ["LISTEN_PID"] == str(os.getpid()))
# They stay pending until they are asked for, so none can come between two looks.
numbers = {{signal.SIGTERM, signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR1}}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
print(*sorted(int(signal.sigwait(numbers)) for _ in numbers), flush=True)
if sys.argv[-1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(5)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets others adopt")
@pytest.mark.parametrize(("end", "status"), [("exits", 5), ("killed", 128 + 9)])
async def test_orphans_are_collected_signals_passed_on_and_its_end_is_the_childs(
    end: str, status: int
) -> None:
    # The process replaces itself, so its own number, for which systemd has sockets, is known.
    script = 'export LISTEN_PID=$$; exec "$@"'
    process = subprocess.Popen(  # noqa: ASYNC220 - a script of its own
        ["sh", "-c", script, "-", sys.executable, "-c", WORK, end],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(4)]
    assert said == ["[True, True, True] 3\n", "set() True\n", "True\n", "ready\n"]
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR1)
    for number in numbers:
        process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE)
    assert [int(number) for number in out.split()] == sorted(numbers)
    assert process.returncode == status
