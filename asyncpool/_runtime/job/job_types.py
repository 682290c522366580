"""Which class of job there is for each way to call a function."""

from __future__ import annotations

from typing import Any

from asyncpool._runtime.job.chunk_job import ChunkJob
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.job.stream_job import StreamJob
from asyncpool.events import Via

# Those whose caller is in this process.
JOB_TYPES: dict[Via, type[Job[Any]]] = {
    "submit": Job,
    "map": ChunkJob,
    "stream": StreamJob,
}
