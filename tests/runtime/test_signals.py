"""Signals: each reaches what it is for, and the handlers of before come back."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from asyncpool._runtime.cluster.signals import (
    SignalHandlers,
    meaningless,
    name_of,
    obeyed,
)
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

OBEYED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR1,
    signal.SIGQUIT,
    signal.SIGUSR2,
)


class Notes:
    """Orders that are noted."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()
        self.orders = SignalHandlers(
            stop=lambda number: self.news.put_nowait(("stop", int(number))),
            reload=lambda: self.news.put_nowait(("reload",)),
            resize=lambda change: self.news.put_nowait(("resize", change)),
            dump=lambda: self.news.put_nowait(("dump",)),
            quit=lambda: self.news.put_nowait(("quit",)),
            refuse=lambda number: self.news.put_nowait(("refuse", int(number))),
        )


async def test_each_signal_is_an_order() -> None:
    notes = Notes()
    before = [signal.getsignal(number) for number in OBEYED]
    with obeyed(notes.orders):
        for number, order in [
            (signal.SIGTERM, ("stop", 15)),
            (signal.SIGINT, ("stop", 2)),
            (signal.SIGHUP, ("reload",)),
            (signal.SIGTTIN, ("resize", 1)),
            (signal.SIGTTOU, ("resize", -1)),
            (signal.SIGUSR1, ("dump",)),
            (signal.SIGQUIT, ("quit",)),
            (signal.SIGUSR2, ("refuse", int(signal.SIGUSR2))),
        ]:
            signal.raise_signal(number)
            async with patience():
                assert await notes.news.get() == order
    assert [signal.getsignal(number) for number in OBEYED] == before


# What ends or stops a process that has an unsound state, or does nothing by default.
SPARED = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGCONT),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
    *(signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG),
}


async def test_what_would_end_it_is_refused() -> None:
    notes = Notes()
    others = signal.valid_signals() - SPARED - set(OBEYED) | {signal.SIGUSR2}
    others = {it for it in others if signal.getsignal(it) is signal.SIG_DFL}
    assert {signal.SIGXCPU, signal.SIGTRAP, signal.SIGSYS} < others
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with obeyed(notes.orders):
        refused = {
            number
            for number in others
            if signal.getsignal(number) is not signal.SIG_DFL
        }
        assert refused == others  # any other would end the tests
        for number in sorted(others):
            signal.raise_signal(number)
            async with patience():
                assert await notes.news.get() == ("refuse", int(number))
        for number in SPARED:
            assert signal.getsignal(number) is before[number]
    assert {it: signal.getsignal(it) for it in signal.valid_signals()} == before


@pytest.mark.skipif(
    not hasattr(signal, "SIGRTMIN"), reason="there are no real-time ones"
)
async def test_real_time_signals_have_names() -> None:
    assert name_of(signal.SIGTERM) == "SIGTERM"
    assert name_of(signal.SIGRTMIN) == "SIGRTMIN"
    assert name_of(signal.SIGRTMIN + 2) == "SIGRTMIN+2"
    assert name_of(signal.SIGRTMAX) == "SIGRTMAX"
    assert name_of(1000) == "signal 1000"
    assert {*range(signal.SIGRTMIN, signal.SIGRTMAX + 1)} < {*meaningless()}


async def test_handlers_of_before_come_back() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: calls.append(number))
    try:
        with obeyed(Notes().orders):
            pass
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [signal.SIGUSR1]


async def test_none_changes_how_a_process_ends() -> None:
    before = [signal.getsignal(number) for number in OBEYED]
    try:
        with obeyed(Notes().orders, is_last=lambda: True):
            pass
        for number in OBEYED:
            signal.raise_signal(number)
    finally:
        for number, handler in zip(OBEYED, before, strict=True):
            signal.signal(number, handler)


async def test_who_ends_by_an_exception_has_the_handlers_of_before() -> None:
    before = [signal.getsignal(number) for number in OBEYED]
    with (
        pytest.raises(LookupError),
        obeyed(Notes().orders, is_last=lambda: True),
    ):
        raise LookupError
    assert [signal.getsignal(number) for number in OBEYED] == before


async def test_what_has_a_handler_means_something() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: calls.append(number))
    try:
        with obeyed(Notes().orders):
            signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert calls == [signal.SIGUSR2]


async def test_what_is_ignored_stays_ignored() -> None:
    notes = Notes()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with obeyed(notes.orders):
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGUSR1)
            async with patience():
                assert await notes.news.get() == ("dump",)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_only_the_main_thread_gets_signals() -> None:
    failures: list[str] = []

    async def obey() -> None:
        with obeyed(Notes().orders):
            pass

    def elsewhere() -> None:
        try:
            asyncio.run(obey())
        except RuntimeError as error:
            failures.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert failures == ["signals reach the main thread only: run the cluster there"]
