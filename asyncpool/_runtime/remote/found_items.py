"""What an agent tells of a chunk that has failed: which items are done.

The agent reads none of it, since only the client has the types that results are made of.
"""

from __future__ import annotations

import logging
from typing import Any

from asyncpool._core.logs import pool_messages as say
from asyncpool._core.map.chunks import read_log
from asyncpool._core.remote_wire.remote_messages import load_parts, pack_parts
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._runtime.job.job import ChunkJob
from asyncpool._runtime.job.outcomes import Failed, load_outcome

_LOGGER = logging.getLogger("asyncpool")

# How it begins: with a log, or with a result that came too late.  Nothing at all stands for
# items each of which may have begun.
_LOG, _RESULT = b"L", b"R"


def pack_log(log: bytes) -> bytes:
    """Return what tells of the log of a chunk; an empty one cannot be read."""
    return _LOG + log


def pack_result(result: Any) -> bytes:
    """Return what tells of a packed result that came too late."""
    return _RESULT + pack_parts(result)


def find(job: ChunkJob[Any], told: bytes) -> None:
    """Find which items of *job* are done.

    A worker that died may have written anything, and the agent has only passed it on.
    """
    try:
        _find(job, told)
    except Exception as error:  # noqa: BLE001 - see above
        say.NOTES_UNREADABLE.log(_LOGGER, {}, error=error)
        job.find_nothing()


def _find(job: ChunkJob[Any], told: bytes) -> None:
    kind, data = told[:1], told[1:]
    if kind == _LOG:
        job.found = read_log(data)
        return
    if kind == _RESULT:
        frame = Frame(FrameKind.VALUE, job.id, job.attempt, 0, load_parts(data))
        result = load_outcome(job._function.serializer, frame)
        if not isinstance(result, Failed):
            job.find_in_result(result)
            return
    job.find_nothing()
