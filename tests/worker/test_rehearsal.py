"""A worker's first steps, rehearsed: to the end, and without a trace."""

from __future__ import annotations

import json
import subprocess
import sys

# In a process of its own, since it sets handlers of signals.
REHEARSE = """
import _thread, json, os, resource, sys
from asyncpool._worker.launcher import rehearsal

jobs, threads = [], []
equip = rehearsal.WorkerParts

def watched(*fds):
    parts = equip(*fds)
    jobs.append(parts.jobs)
    return parts

rehearsal.WorkerParts = watched
_thread.start_new_thread = lambda *call: threads.append(call)
before = os.listdir("/proc/self/fd")
if sys.argv[1]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + int(sys.argv[1]), hard))
rehearsal.rehearse()
if sys.argv[1]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
print(json.dumps({
    "left": sorted({*os.listdir("/proc/self/fd")} - {*before}),
    "jobs": [one.fileno() for one in jobs],
    "threads": len(threads),
}))
"""


def rehearse(descriptors: str = "") -> object:
    """Return what comes of it, with so many descriptors to spare."""
    command = [sys.executable, "-c", REHEARSE, descriptors]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr
    return json.loads(done.stdout)


def test_it_goes_to_the_end_and_leaves_nothing() -> None:
    assert rehearse() == {"left": [], "jobs": [-1], "threads": 1}


def test_where_there_are_no_descriptors_it_is_left() -> None:
    for few in range(5):
        assert rehearse(str(few)) == {"left": [], "jobs": [], "threads": 0}
