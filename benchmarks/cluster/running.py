"""A server in processes of its own, of which nothing is left in the end."""

import os
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.cluster.answer import Answer, request
from benchmarks.cluster.folder import BEGUN, BROKEN, START, VARIABLE
from benchmarks.cluster.servers import SERVERS, Place
from benchmarks.runner import ROOT
from benchmarks.torture.watch import MARK, Family

READY = 30.0
"""Seconds in which a server must answer, beyond what the application takes."""

ALL = 5.0
"""Seconds from the first answer until every worker should have given one.

Where the kernel decides who accepts, one of them may get nothing while it is quiet.
"""


class NotServingError(RuntimeError):
    """The server has ended, or does not answer; the text is the end of its log."""


class Running:
    """One server, its folder, and its log; ``with Running("uvicorn", 2) as server``."""

    def __init__(
        self, row: str, workers: int, *, start: float = 0.0, journal: bool = False
    ) -> None:
        name, _, loop = row.partition("+")
        self._start = start
        self._mark = uuid.uuid4().hex
        self._stack = ExitStack()
        self._scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.folder = Path(self._scratch.name)
        self.place = Place(free_port(), workers, loop)
        self._command = SERVERS[name].command(self.place)
        if start:
            (self.folder / START).write_text(str(start))
        if journal:
            (self.folder / BEGUN).touch()

    def __enter__(self) -> Self:
        self._stack.callback(self._scratch.cleanup)
        log = self._stack.enter_context(self.log.open("wb"))
        settings = {VARIABLE: str(self.folder), MARK: self._mark}
        places = dict.fromkeys(("HOME", "TMPDIR"), str(self.folder))
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, **settings, **places, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        self._stack.callback(self._process.wait)
        self._stack.callback(Family(self._process.pid, self._mark).end)
        try:
            self.wait_until_ready()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def workers(self) -> int:
        return self.place.workers

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        return self.place.port

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the master alone, as a service manager would."""
        self._process.send_signal(number)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def break_application(self) -> None:
        """Make the application one that cannot be imported, for workers to come."""
        (self.folder / BROKEN).touch()

    def repair_application(self) -> None:
        (self.folder / BROKEN).unlink()

    def begun(self) -> set[tuple[int, str]]:
        """Return which worker has begun which path."""
        lines = (self.folder / BEGUN).read_text().splitlines()
        pairs = (line.split() for line in lines)
        return {(int(worker), path) for worker, path in pairs}

    def wait_until_ready(self) -> None:
        """Return when each worker has answered, or some have for long enough.

        Raises:
            NotServingError: If there is no answer at all in time.
        """
        give_up_at = time.monotonic() + READY + self._start * self.workers
        found: set[int] = set()
        while len(found) < self.workers:
            before = len(found)
            found |= answering(self.port, 4 * self.workers)
            now = time.monotonic()
            if not before and found:
                give_up_at = now + ALL + self._start * self.workers
            if now > give_up_at or self.has_ended():
                break
            time.sleep(0.02)
        if not found:
            raise NotServingError(self.last_words())

    def last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else "it says nothing"


def answering(port: int, connections: int) -> set[int]:
    """Open so many *connections* at once; return the processes that answer in them."""
    found = set()
    with ExitStack() as stack:
        opened = []
        for _ in range(connections):
            with suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", port), 1.0)
                opened.append(stack.enter_context(connection))
        for connection in opened:
            with suppress(OSError, EOFError, ValueError):
                connection.sendall(request("/"))
                found.add(read_worker(connection))
    return found


def read_worker(connection: socket.socket) -> int:
    answer = Answer()
    while not answer.is_complete:
        answer.feed(connection.recv(4096))
    return answer.worker


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_alive(pid: int) -> bool:
    """Tell whether *pid* runs; one that is dead and not yet reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return False
    return state not in b"ZX"
