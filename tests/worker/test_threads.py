"""Starting a thread of a worker."""

from __future__ import annotations

import faulthandler
import sys
import threading
from pathlib import Path

from asyncpool._worker.process.threads import start_thread


def test_a_thread_runs_when_start_thread_returns(tmp_path: Path) -> None:
    before = len(sys._current_frames())
    ended = threading.Event()
    try:
        for number in range(1, 21):
            start_thread(ended.wait)
            # A thread that does not run yet has no frame.
            assert len(sys._current_frames()) == before + number
            with (tmp_path / "stacks").open("w+") as stacks:
                faulthandler.dump_traceback(stacks)
                stacks.seek(0)
                assert (
                    "in test_a_thread_runs_when_start_thread_returns" in stacks.read()
                )
    finally:
        ended.set()
