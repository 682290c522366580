"""Run one cell in processes of its own, and leave nothing of it behind.

Peers leave workers, fork servers, semaphores and sockets when they are not
closed, and not being closed is the rule here.  What belongs to a cell is told by
a variable in its environment, which also finds what was reparented or has moved
to another session; its files are in a temporary directory of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
TAG = "ASYNCPOOL_BENCHMARK_CELL"
# Trackers unlink the semaphores of the dead, and then end by themselves.
TRACKER, TRACKER_GRACE = "resource_tracker", 1.0

Outcome = dict[str, Any]


def run_cell(question: str, row: str, *, quick: bool, limit: float) -> Outcome:
    """Return what the cell printed, or why it did not print anything."""
    tag = uuid.uuid4().hex
    command = [sys.executable, "-m", "benchmarks.cell", question, row]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        out, err = Path(scratch, "stdout"), Path(scratch, "stderr")
        # Not pipes: orphans of the cell hold them open after it has ended.
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command + ["--quick"] * quick,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=ROOT,
                env={**os.environ, TAG: tag, "TMPDIR": scratch},
                start_new_session=True,
            )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            return failure("hangs", f"no answer within {limit:g} s")
        finally:
            sweep(tag)
            process.wait()
        return read_outcome(out, err, process.returncode)


def read_outcome(out: Path, err: Path, status: int) -> Outcome:
    lines = out.read_text("utf-8", "replace").splitlines()
    if lines and lines[-1].startswith("{"):
        outcome: Outcome = json.loads(lines[-1])
        return outcome
    last = err.read_text("utf-8", "replace").splitlines()[-1:]
    return failure("failed", "".join(last)[:200] or f"exit status {status}")


def failure(status: str, note: str) -> Outcome:
    return {"figures": {}, "samples": [], "curve": [], "status": status, "note": note}


def sweep(tag: str) -> None:
    """Kill every process that carries *tag*, also those being born meanwhile."""
    patience = time.perf_counter() + TRACKER_GRACE
    while found := [p for p in psutil.process_iter() if carries(p, tag)]:
        waiting = time.perf_counter() < patience
        for process in found:
            try:
                if not (waiting and TRACKER in " ".join(process.cmdline())):
                    process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(found, timeout=0.05)


def carries(process: psutil.Process, tag: str) -> bool:
    try:
        return process.environ().get(TAG) == tag
    except (psutil.Error, OSError):
        return False
