"""An exception from outside: in the job that is meant, or nowhere."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncpool import JobCancelled
from asyncpool._system.signals import INTERRUPT, STACKS
from asyncpool._worker.job_ending.interrupts import Interrupts

START = 4096


@pytest.fixture
def stacks() -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.truncate(START + 65_536)
        yield file.fileno()


@pytest.fixture
def interrupts(stacks: int) -> Iterator[Interrupts]:
    before = signal.getsignal(INTERRUPT)
    yield Interrupts(stacks, START)
    signal.signal(INTERRUPT, before)
    faulthandler.unregister(STACKS)


def ask(interrupts: Interrupts, sequence: int) -> None:
    """Ask from another thread, and let what comes of it come."""
    thread = threading.Thread(target=interrupts.ask, args=(sequence,))
    thread.start()
    thread.join()
    time.sleep(0)  # a signal is handled between two bytecodes


def test_what_runs_is_interrupted_once(interrupts: Interrupts) -> None:
    interrupts.begin(3)
    with pytest.raises(JobCancelled):
        ask(interrupts, 3)
    signal.raise_signal(INTERRUPT)
    interrupts.begin(3)


def test_what_is_over_is_not(interrupts: Interrupts) -> None:
    interrupts.begin(3)
    interrupts.running = None
    ask(interrupts, 3)
    interrupts.begin(4)
    ask(interrupts, 3)
    signal.raise_signal(INTERRUPT)
    with pytest.raises(JobCancelled):
        ask(interrupts, 4)


def test_what_has_not_begun_does_not(interrupts: Interrupts) -> None:
    interrupts.begin(3)
    interrupts.running = None
    ask(interrupts, 4)
    with pytest.raises(JobCancelled):
        interrupts.begin(4)


def test_it_ends_what_the_main_thread_waits_for(interrupts: Interrupts) -> None:
    interrupts.begin(1)
    waiting, silent = os.pipe()
    timer = threading.Timer(0.01, interrupts.ask, (1,))
    timer.start()
    with pytest.raises(JobCancelled):
        os.read(waiting, 1)
    timer.join()
    os.close(waiting)
    os.close(silent)


class AskAtImport:
    """What imports pass by; at that of one module, the job is asked to end."""

    def __init__(self, name: str, interrupts: Interrupts) -> None:
        self._name = name
        self._interrupts = interrupts

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._name:
            ask(self._interrupts, 1)


def test_an_import_is_not_but_what_is_behind_it(
    interrupts: Interrupts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "whole"
    package.mkdir()
    (package / "__init__.py").write_text("from . import first, last\n")
    (package / "first.py").touch()
    (package / "last.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    watched = [AskAtImport("whole.last", interrupts), *sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", watched)
    interrupts.begin(1)
    module = importlib.import_module("whole")
    assert {"first", "last"} <= vars(module).keys()
    assert interrupts.pending()
    with pytest.raises(JobCancelled):
        interrupts.ask_again()
    assert not interrupts.pending()
    interrupts.ask_again()  # which is too late


@pytest.mark.parametrize("times", [1, 2])
def test_stacks_are_written_to_where_they_belong(
    interrupts: Interrupts, stacks: int, times: int
) -> None:
    for _ in range(times):
        interrupts.write_stacks()
    text = os.pread(stacks, 65_536, START)
    assert text.count(b"in write_stacks") == 1
    assert os.pread(stacks, START, 0) == bytes(START)


def test_a_signal_has_them_written_in_c(interrupts: Interrupts, stacks: int) -> None:
    assert interrupts.running is None
    os.kill(os.getpid(), STACKS)
    while not (text := os.pread(stacks, 65_536, START).strip(b"\0")):
        pass
    assert b"in test_a_signal_has_them_written_in_c" in text
