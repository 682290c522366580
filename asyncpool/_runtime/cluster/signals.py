"""The signals that a cluster obeys."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalHandlers:
    """What is done at each signal; every one is called in the loop.

    Attributes:
        stop: At ``SIGTERM`` and ``SIGINT``, with the number; the first asks for a
            drain, the next one for an end at once.
        reload: At ``SIGHUP``.
        resize: At ``SIGTTIN`` with 1, at ``SIGTTOU`` with -1.
        dump: At ``SIGUSR1``.
        quit: At ``SIGQUIT``.
        refuse: With the number, at those that mean nothing here, and whose default would
            end the process without a word.
    """

    stop: Callable[[int], object]
    reload: Callable[[], object]
    resize: Callable[[int], object]
    dump: Callable[[], object]
    quit: Callable[[], object]
    refuse: Callable[[int], object]


# What a cluster obeys, what nobody can handle, what tells of a fault in this process, after
# which it cannot go on, what stops and continues it, and what is ignored by default.  Which of
# them there are depends on the system.
_OBEYED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGTTIN", "SIGTTOU", "SIGUSR1", "SIGQUIT")
_LEFT_ALONE = (
    *("SIGKILL", "SIGSTOP"),
    *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"),
    *("SIGTSTP", "SIGCONT"),
    *("SIGCHLD", "SIGWINCH", "SIGURG", "SIGINFO"),
)


def meaningless() -> list[int]:
    """Return the signals that mean nothing to a cluster, and would end it by default."""
    every: set[int] = {*signal.valid_signals()}
    known = {getattr(signal, name, None) for name in (*_OBEYED, *_LEFT_ALONE)}
    # What has no name and is not real-time is a matter of the system's libraries.
    return [
        number
        for number in sorted(every - known)
        if isinstance(number, signal.Signals) or _is_real_time(number)
    ]


def name_of(number: int) -> str:
    """Return what a signal is called; of the real-time ones only two have names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        if _is_real_time(number):
            return f"SIGRTMIN+{number - signal.SIGRTMIN}"
        return f"signal {number}"


def _is_real_time(number: int) -> bool:
    first = getattr(signal, "SIGRTMIN", None)
    return first is not None and first <= number <= signal.SIGRTMAX


@contextmanager
def obeyed(
    orders: SignalHandlers, *, is_last: Callable[[], bool] = lambda: False
) -> Generator[None]:
    """Have signals obeyed while the context lasts.

    Those that whoever started this process has had ignored (a shell ``SIGINT``, of what
    runs in the background; nohup ``SIGHUP``) stay ignored.

    Args:
        orders: What each does.
        is_last: Asked at the end, unless an exception is it: whether this process ends now
            as well.  Signals are ignored then, since none is to change how it ends.

    Raises:
        RuntimeError: If this is not the main thread, which alone gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("signals reach the main thread only: run the cluster there")
    loop = asyncio.get_running_loop()
    actions: list[tuple[int, Callable[..., object], tuple[int, ...]]] = [
        (signal.SIGTERM, orders.stop, (signal.SIGTERM,)),
        (signal.SIGINT, orders.stop, (signal.SIGINT,)),
        (signal.SIGHUP, orders.reload, ()),
        (signal.SIGTTIN, orders.resize, (1,)),
        (signal.SIGTTOU, orders.resize, (-1,)),
        (signal.SIGUSR1, orders.dump, ()),
        (signal.SIGQUIT, orders.quit, ()),
    ]
    # One that has a handler means something to the program that we are a part of.
    actions += [
        (number, orders.refuse, (number,))
        for number in meaningless()
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    before: list[tuple[int, Any]] = []
    ignore = False
    try:
        for number, action, arguments in actions:
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN:
                loop.add_signal_handler(number, action, *arguments)
                before.append((number, handler))
        yield
        ignore = is_last()
    finally:
        with _held_back([number for number, _ in before]):
            for number, handler in before:
                loop.remove_signal_handler(number)
                if ignore:
                    signal.signal(number, signal.SIG_IGN)
                elif handler is not None:  # of C code, which can only be kept away
                    # The loop has put the default back, which may not be what there was.
                    signal.signal(number, handler)


@contextmanager
def _held_back(numbers: Iterable[int]) -> Generator[None]:
    """Let signals wait, where each has its default for a moment."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
