"""Run a worker's first steps in the spare process, before it becomes a worker.

A forked process shares its memory with the launcher.  When it writes to a page for the first
time, the kernel copies the page.  So the first steps of a worker take three times as long:
1.3 to 2.5 ms from its descriptors until it serves, and 0.5 ms after a rehearsal.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import socket
from io import FileIO

from asyncpool._core.wire.frames import FrameKind, header
from asyncpool._core.wire.page import STACKS_SIZE, STACKS_START
from asyncpool._system.sockets import socket_pair
from asyncpool._worker.channel.large_buffers import LargeBuffers
from asyncpool._worker.loop import WorkerParts, make_executor


def rehearse() -> None:
    """Make the parts of a worker, with descriptors that lead nowhere, and drop them.

    What is known to the whole process, such as the handlers of signals, is known to it
    until the next worker is made here.
    """
    # It need not succeed: there may be no descriptors, or no such files on this platform.
    # An ExitStack would have each spare process import inspect, from Python 3.15 on.
    with contextlib.suppress(OSError, AttributeError):
        outside, jobs = socket_pair()
        with outside, jobs:
            control, theirs = socket_pair()
            with control, theirs, _new_page() as page:
                page.truncate(STACKS_START + STACKS_SIZE)
                _take_steps(jobs, theirs, page.fileno(), control)


def _new_page() -> FileIO:
    return FileIO(os.memfd_create("rehearsal"), "wb")


def _take_steps(
    jobs: socket.socket, theirs: socket.socket, page: int, control: socket.socket
) -> None:
    parts = WorkerParts(jobs.detach(), theirs.detach(), page)
    with contextlib.closing(parts.jobs), contextlib.closing(parts.control):
        make_executor(parts, LargeBuffers(parts.jobs, parts.segments))
        control.sendall(header(FrameKind.PING, 0))
        parts.control.receive_config()
        parts.control.send(FrameKind.HELLO)
        _thread.start_new_thread(int, ())
