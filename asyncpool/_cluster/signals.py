"""The signals that a cluster obeys."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

# Signals that a cluster leaves alone: nobody can handle them, they report a fault in this process,
# they stop or continue it, or they are ignored by default.  Not every system has all of them.
_LEFT_ALONE = (
    *("SIGKILL", "SIGSTOP"),
    *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"),
    *("SIGTSTP", "SIGCONT"),
    *("SIGCHLD", "SIGWINCH", "SIGURG", "SIGINFO"),
)


def name_of(number: int) -> str:
    """Return the name of a signal; only two of the real-time ones have names."""
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
    orders: Mapping[int, Callable[[], object]],
    *,
    refuse: Callable[[int], object],
    is_over: Callable[[], bool] = lambda: False,
    is_last: Callable[[], bool] = lambda: False,
) -> Generator[None]:
    """Obey signals while the context lasts.

    A signal stays ignored if it was ignored when this process was started.  A shell does
    that with ``SIGINT`` for what runs in the background, and nohup with ``SIGHUP``.

    All orders are given in the loop.

    Args:
        orders: What is called at each signal.
        refuse: Called with the number of a signal that means nothing here, and that would end the
            process without a word by default.
        is_over: Returns whether an order comes too late, and is not given.
        is_last: Called at the end, unless an exception ends the context; returns whether
            this process ends now as well.  Then signals are ignored, so that none of them
            changes how it ends.

    Raises:
        RuntimeError: If this is not the main thread: only that thread gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("signals reach the main thread only: run the cluster there")
    loop = asyncio.get_running_loop()
    every_order = dict(orders)
    # A signal with a handler means something to the program that the cluster is a part of.
    every: set[int] = {*signal.valid_signals()}
    left_alone = {getattr(signal, name, None) for name in _LEFT_ALONE}
    for number in every - left_alone - every_order.keys():
        # One without a name that is not real-time is for the system's libraries.
        is_known = isinstance(number, signal.Signals) or _is_real_time(number)
        if is_known and signal.getsignal(number) is signal.SIG_DFL:
            every_order[number] = partial(refuse, number)

    def give(order: Callable[[], object]) -> None:
        if not is_over():
            order()

    before: list[tuple[int, Any]] = []
    ignore = False
    try:
        for number, order in every_order.items():
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN:
                loop.add_signal_handler(number, give, order)
                before.append((number, handler))
        yield
        ignore = is_last()
    finally:
        with _held_back([number for number, _ in before]):
            for number, handler in before:
                loop.remove_signal_handler(number)
                if ignore:
                    signal.signal(number, signal.SIG_IGN)
                # None is a handler in C code, which was not replaced.  Of others the loop has set
                # the default action, and there may have been another one.
                elif handler is not None:
                    signal.signal(number, handler)


@contextmanager
def _held_back(numbers: Iterable[int]) -> Generator[None]:
    """Hold signals back while their default action is set for a moment."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
