"""Lines of a watched pool or server, as its control socket sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from asyncpool.enums import CrashKind, JobOutcome, NextStep, RunState, SlotState
from asyncpool.events import Crash
from asyncpool.stats import FunctionStats, Histogram, PoolStats, RunningJob, SlotStats

BEGIN = 1_790_000_000.0  # Unix time

# A request that is open, as a server tells of it.
REQUEST = {
    "worker": 1,
    "method": "GET",
    "path": "/orders?day=1",
    "age": 12.25,
    "client": "10.0.0.7:5123",
    "stack": 'File "shop.py", line 9 in orders\nFile "db.py", line 4 in ask\n',
}


def durations(*counts: int, total: float = 0.0) -> Histogram:
    """Return a histogram whose first bucket ends at 1.024 ms."""
    bounds = tuple(0.001024 * 2**power for power in range(len(counts)))
    return Histogram(bounds=bounds, counts=counts, total=total)


def function(
    name: str,
    ok: int = 0,
    run: Histogram | None = None,
    **others: int,
) -> FunctionStats:
    """Return the figures of a function; *others* are outcomes."""
    run = run or durations(ok, total=ok * 0.0008)
    return FunctionStats(
        function=name,
        via="submit",
        jobs={**dict.fromkeys(JobOutcome, 0), "ok": ok, **others},  # type: ignore[dict-item]
        retries=0,
        takeovers=0,
        items=0,
        run=run,
        wait=run,
    )


def slot(number: int, *, cpu: float = 0.0, running: str = "", **more: Any) -> SlotStats:
    """Return the figures of a slot."""
    jobs = (RunningJob(job_id=7, function=running, attempt=1, seconds=0.5),)
    fields: dict[str, Any] = {
        "slot": number,
        "generation": 1,
        "pid": 4000 + number,
        "state": SlotState.BUSY if running else SlotState.IDLE,
        "seconds": 1.0,
        "job_id": 7 if running else None,
        "job_ids": (7,) if running else (),
        "running": jobs if running else (),
        "jobs": 3,
        "uptime": 60.0,
        "cpu": cpu,
        "memory": 12_000_000,
        **more,
    }
    return SlotStats(**fields)


def pool_status(
    *,
    functions: Sequence[FunctionStats] = (),
    slots: Sequence[SlotStats] = (),
    pid: int = 400,
    name: str = "shop",
    **figures: Any,
) -> dict[str, Any]:
    """Return the status of a pool, as it is read from a line."""
    stats = PoolStats(
        state=RunState.RUNNING,
        workers=max(1, len(slots)),
        functions=tuple(functions),
        slots=tuple(slots),
        **figures,
    )
    status = {"kind": "pool", "name": name, "which": f"--name {name}", "pid": pid}
    read: dict[str, Any] = as_read({**status, **asdict(stats)})
    return read


def cluster_status(
    *, handed: int = 0, connections: int = 0, responses: Any = None
) -> dict[str, Any]:
    """Return the status of a server."""
    worker = {
        "slot": 0,
        "generation": 1,
        "pid": 4000,
        "state": "ready",
        "ready": True,
        "connections": connections,
        "handed": handed,
        "uptime": 60.0,
        "memory": 12_000_000,
    }
    return {
        "kind": "cluster",
        "name": "web",
        "which": "--name web",
        "pid": 400,
        "state": "running",
        "workers": 1,
        "spread": "balanced",
        "addresses": ["tcp://127.0.0.1:8000"],
        "handed": handed,
        "refused": 0,
        "lost": 0,
        "crashes": 0,
        "restarts": 0,
        "spawned": 1,
        "slots": [worker],
        **({} if responses is None else {"requests": {"responses": responses}}),
    }


def line(at: float, status: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a line that was written *at* seconds after :data:`BEGIN`."""
    empty = {"at": BEGIN + at, "status": status, "events": [], "jobs": [], "ended": 0}
    read: dict[str, Any] = as_read(empty | more)
    return read


def job(
    number: int,
    at: float,
    name: str = "shop.resize",
    outcome: str = "ok",
    run: float = 0.1,
) -> list[Any]:
    """Return a job that ended *at* seconds after :data:`BEGIN`."""
    return [number, name, 0, 0, BEGIN + at, 0.01, run, outcome, 1]


def crashed(at: float, **fields: Any) -> dict[str, Any]:
    """Return the event of a crash."""
    crash = Crash(
        **{
            "slot": 0,
            "generation": 1,
            "pid": 4000,
            "exit_code": None,
            "signal": "SIGSEGV",
            "kind": CrashKind.CRASH,
            "uptime": 12.0,
            "job_id": 7,
            "attempt": 1,
            "detail": "",
            "stderr_tail": ("Fatal Python error: Segmentation fault",),
            "next_step": NextStep.RESTART,
            "next_start": 0.0,
            "stack": 'File "shop.py", line 9 in resize',
            "function": "shop.resize",
            **fields,
        }
    )
    event = {"type": "Crashed", "at": BEGIN + at, "crash": asdict(crash)}
    read: dict[str, Any] = as_read(event)
    return read


def as_read(value: Any) -> Any:
    """Return what comes out of JSON."""
    return json.loads(json.dumps(value))
