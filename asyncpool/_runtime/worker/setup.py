"""What all workers of a pool have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncpool._core.policies.worker_env import WorkerEnv
from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.channel.segments import Segments
from asyncpool._runtime.launcher.launcher import Launcher
from asyncpool._runtime.options.worker_options import OutputMode
from asyncpool._runtime.output.log_records import WorkerLogs
from asyncpool._runtime.worker.serving import Serving
from asyncpool._runtime.worker.worker_events import WorkerEvents

if TYPE_CHECKING:  # few pools have a sandbox
    from asyncpool._runtime.sandbox.places import Places


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What all workers of a pool have in common."""

    pool: str
    launcher: Launcher
    listener: WorkerEvents
    handed: Collection[int]
    buffer: memoryview
    max_payload: int
    untrusted: bool
    concurrency: int
    output: OutputMode
    tasks: asyncio.TaskGroup
    threads: Threads
    segments: Segments
    serving: Serving | None
    worker_logs: WorkerLogs
    places: Places | None
    worker_env: WorkerEnv | None
    forked: bool
    lends_tracker: bool
