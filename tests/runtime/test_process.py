"""Tests of asyncpool/_runtime/launcher/launcher_process.py: a signal is sent, or it is said why not."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from typing import NoReturn

import pytest

from asyncpool._runtime.base import arguments as refusals
from asyncpool._runtime.launcher.launcher_process import Process

pytestmark = pytest.mark.asyncio


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What is sent, and by which means; nothing is."""
    calls: list[tuple[str, int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *call: calls.append(("kill", *call)))
    monkeypatch.setattr(
        signal, "pidfd_send_signal", lambda *call: calls.append(("pidfd", *call))
    )
    monkeypatch.setattr(refusals, "_told", set[str]())
    return calls


def failing(number: int) -> object:
    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


async def test_a_process_that_is_held_is_not_signalled_by_number(
    sent: list[tuple[str, int, int]],
) -> None:
    fd, other = os.pipe()
    process = Process(asyncio.get_running_loop(), 4711, fd)
    process.signal(15)
    assert sent == [("pidfd", fd, 15)]
    process.close()
    os.close(other)


@pytest.mark.logs("call-refused")
@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EACCES])
async def test_a_signal_that_is_refused_is_sent_by_number_until_the_end_is_known(
    sent: list[tuple[str, int, int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    monkeypatch.setattr(signal, "pidfd_send_signal", failing(number))
    fd, other = os.pipe()
    process = Process(asyncio.get_running_loop(), 4711, fd)
    process.signal(15)
    process.signal(9)
    process.ended(-9)
    process.signal(9)
    assert sent == [("kill", 4711, 15), ("kill", 4711, 9)]
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("pidfd_send_signal is refused here (")
    process.close()
    os.close(other)


@pytest.mark.logs("signal-not-sent")
async def test_a_signal_that_cannot_be_sent_at_all_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "kill", failing(errno.EPERM))
    process = Process(asyncio.get_running_loop(), 4711, None)
    process.signal(9)
    assert caplog.messages == [
        "signal 9 cannot be sent to worker 4711: [Errno 1] Operation not permitted"
    ]
    monkeypatch.setattr(os, "kill", failing(errno.ESRCH))
    process.signal(9)
    process.close()
    assert len(caplog.messages) == 1, "it has just ended"
