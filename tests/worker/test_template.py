"""The launcher's process, where no pool can make it do what it does once in a while."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator

import pytest

from asyncpool._worker.reaper import Reaper
from asyncpool._worker.template import Template

PID = 4711


@pytest.fixture
def sigterm_exits() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm_exits")
def test_a_sigterm_while_it_forks_ahead_waits_until_somebody_has_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its socket would be left to the garbage, which Python complains of."""

    def fork() -> int:
        signal.raise_signal(signal.SIGTERM)
        return PID

    monkeypatch.setattr(os, "fork", fork)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        template = Template(ours, Reaper())
        with pytest.raises(SystemExit):
            template._fork_spare()
        spare = template._spare
        assert spare is not None
        assert spare.pid == PID
        assert PID in template._reaper._workers
        assert spare.hand_over([]) is False
        for fd in (template._wake_out, template._wake_in):
            os.close(fd)
