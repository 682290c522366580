"""Starts cells, observes what only an outsider can, and cleans up after them."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.torture.faults import FAULTS
from benchmarks.torture.outcomes import HANG
from benchmarks.torture.peers import PEERS
from benchmarks.torture.results import CellResult, judge
from benchmarks.torture.rules import RULES, AtMost, Value
from benchmarks.torture.trial import KEY
from benchmarks.torture.watch import MARK, TICK, Family

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 8.0

BOOT = 4.0
"""Seconds beyond its time in which a cell may start Python and give up."""


def column(
    peer: str, *, timeout: float = TIMEOUT, faults: Iterable[str] = FAULTS
) -> dict[str, CellResult]:
    """Put one peer through the faults, one after the other."""
    return {fault: run_cell(peer, fault, timeout=timeout) for fault in faults}


def run_cell(peer: str, fault: str, *, timeout: float) -> CellResult:
    """Run one cell and leave nothing of it behind."""
    if not PEERS[peer].is_installed:
        return CellResult(peer, fault, "not installed", "not installed")
    # The name is short because workers' sockets get paths in there.
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        return Cell(peer, fault, Path(folder), timeout).run()


class Cell:
    """A process of its own session with one peer under one fault."""

    def __init__(self, peer: str, fault: str, folder: Path, timeout: float) -> None:
        self.peer = peer
        self.fault = fault
        self.folder = folder
        self.timeout = timeout
        self.mark = uuid.uuid4().hex
        self.stdout = folder / "stdout"
        self.stderr = folder / "stderr"

    def run(self) -> CellResult:
        started_at = time.monotonic()
        process = self.start()
        family = Family(process.pid, self.mark)
        try:
            report = self.wait_for_report(process)
            if report is None:
                return self.failed(process, time.monotonic() - started_at)
            seen: dict[str, Value] = report["seen"]
            seen.update(self.observe(process, family))
        finally:
            family.end()
            process.kill()
            process.wait()
        seconds = round(time.monotonic() - started_at, 2)
        return judge(self.peer, self.fault, seen, report["notes"], seconds)

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "benchmarks.torture.cell", self.peer]
        command += [self.fault, str(self.folder), f"--timeout={self.timeout}"]
        environment = {
            **os.environ,
            MARK: self.mark,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.folder),
        }
        with self.stdout.open("wb") as stdout, self.stderr.open("wb") as stderr:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    def wait_for_report(self, process: subprocess.Popen[bytes]) -> Any:
        deadline = time.monotonic() + self.timeout + BOOT
        while time.monotonic() < deadline:
            is_over = process.poll() is not None
            *lines, _unfinished = self.stdout.read_text(errors="replace").split("\n")
            for line in lines:
                if line.startswith(f'{{"{KEY}"'):
                    return json.loads(line)[KEY]
            if is_over:
                return None
            time.sleep(TICK)
        return None

    def failed(self, process: subprocess.Popen[bytes], seconds: float) -> CellResult:
        """Judge a cell that told nothing: stuck beyond its timer, or broken."""
        code = process.poll()
        lines = self.stderr.read_text(errors="replace").splitlines()
        note = {"cell": lines[-1] if lines else f"exit code {code}"}
        text = HANG if code is None else "cell failed"
        return CellResult(self.peer, self.fault, "bad", text, {}, note, seconds)

    def observe(
        self, process: subprocess.Popen[bytes], family: Family
    ) -> dict[str, Value]:
        match FAULTS[self.fault].ending:
            case "report":
                return {}
            case "kill":
                return self.observe_kill(process, family)
            case "interrupt":
                return self.observe_interrupt(process, family)

    def observe_kill(
        self, process: subprocess.Popen[bytes], family: Family
    ) -> dict[str, Value]:
        family.look()
        process.kill()
        process.wait()
        after_one, after_three = family.alive_after(1.0, 3.0)
        return {"alive after 1 s": after_one, "alive after 3 s": after_three}

    def observe_interrupt(
        self, process: subprocess.Popen[bytes], family: Family
    ) -> dict[str, Value]:
        """Interrupt the whole group, as a terminal does; see who is left, and heard."""
        limit = RULES[self.fault]["gone"]
        assert isinstance(limit, AtMost)
        family.look()
        os.killpg(process.pid, signal.SIGINT)
        seconds = family.gone_after(limit.limit)
        is_over = process.poll() is not None
        noise = self.stderr.read_text(errors="replace")
        return {
            "gone": HANG if seconds is None else round(seconds, 2),
            "orphans": len(family.look()) if is_over else 0,
            "tracebacks": noise.count("Traceback (most recent call last)"),
            "lines on stderr": len(noise.splitlines()),
        }
