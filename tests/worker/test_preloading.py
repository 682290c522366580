"""Tests of asyncpool/_worker/process/preloading.py: threads that a fork would leave behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.scripts import ROOT

PROGRAM = """
import _thread, os
from asyncpool._worker.process.preloading import threads_left

before = threads_left()
lock = _thread.allocate_lock()
lock.acquire()
_thread.start_new_thread(lock.acquire, ())
print(before, len(threads_left()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists threads")
def test_a_thread_is_found_also_where_a_fork_beside_it_is_an_error() -> None:
    """Python warns of each such fork from 3.12 on, and warnings may be errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.stdout, done.stderr) == ("[] 1\n", "")
