"""Functions that log, in workers; and a handler that keeps what comes home."""

from __future__ import annotations

import asyncio
import logging
import logging.config
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import asyncpool
from tests.helpers import jobs

__all__ = ["Kept", "handled_by"]

LOGGER = "tests.somewhere"


class Kept(logging.Handler):
    """Keeps records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._news = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._news.set()

    @property
    def messages(self) -> list[str]:
        """What they say."""
        return [record.getMessage() for record in self.records]

    async def until(self, predicate: Callable[[list[str]], bool]) -> None:
        """Wait until *predicate* holds for the messages."""
        while not predicate(self.messages):
            self._news.clear()
            await self._news.wait()


@contextmanager
def handled_by(
    handler: logging.Handler, name: str = "tests", level: int = logging.INFO
) -> Iterator[logging.Logger]:
    """Give a logger a handler and a level for a while."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


# Jobs.


def log(message: str, *args: Any, level: int = logging.INFO, name: str = LOGGER) -> int:
    logging.getLogger(name).log(level, message, *args)
    return os.getpid()


def log_in_detail() -> None:
    logging.getLogger(LOGGER).warning(
        "%s and %d",
        "one",
        2,
        extra={"tenant": "acme", "size": 3, "lock": threading.Lock()},
        stack_info=True,
    )


def log_badly() -> str:
    logging.getLogger(LOGGER).warning("%d", "no number")
    return "done"


def log_and_die(count: int) -> NoReturn:
    for number in range(count):
        logging.getLogger(LOGGER).warning("last words %d", number)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def log_without_end(gate: str) -> NoReturn:
    jobs.pass_by(gate, "flood")
    logger = logging.getLogger(LOGGER)
    number = 0
    while True:
        logger.warning("flood %d", number)
        number += 1


def log_many(count: int) -> int:
    logger = logging.getLogger(LOGGER)
    for number in range(count):
        logger.warning("%d", number)
    return count


def log_in_thread_by_adapter() -> None:
    logger = asyncpool.current_job().logger
    thread = threading.Thread(target=logger.warning, args=("by adapter",))
    thread.start()
    thread.join()


_late = threading.Event()
_late_threads: list[threading.Thread] = []


def log_in_thread_late() -> None:
    """Start a thread that logs when this job is over, in the midst of another."""
    job, logger = asyncpool.current_job(), logging.getLogger(LOGGER)

    def body() -> None:
        _late.wait()
        job.logger.warning("by adapter")
        logger.warning("by itself")

    _late_threads.append(threading.Thread(target=body))
    _late_threads[0].start()


def let_it_log() -> None:
    _late.set()
    _late_threads[0].join()


def log_as_job(**extra: Any) -> None:
    asyncpool.current_job().logger.warning("of a job", extra=extra)


def log_in_fork() -> int:
    """Log in a copy of the worker, then in the worker."""
    if (child := os.fork()) == 0:
        try:
            log("in the copy", level=logging.WARNING)
        finally:
            os._exit(len(logging.getLogger().handlers))
    _, left = os.waitpid(child, 0)
    assert left == 0, "there logging is as if nobody had configured it"
    return log("in the worker", level=logging.WARNING)


def log_from_signals(count: int) -> int:
    """Log without a pause, and from a signal handler in the middle of that."""
    logger, found = logging.getLogger(LOGGER), 0

    def on_signal(*_: object) -> None:
        nonlocal found
        found += 1
        logger.warning("from a handler")
        # Again only now: signals that come faster than they are handled leave no time for more.
        if found < count:
            signal.setitimer(signal.ITIMER_REAL, 1e-4)

    signal.signal(signal.SIGALRM, on_signal)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    try:
        number = 0
        while found < count:
            logger.warning("%d", number)
            number += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    logger.warning("the end")
    return number + found + 1


def levels(*names: str) -> list[int]:
    return [logging.getLogger(name).getEffectiveLevel() for name in names]


def enabled(level: int) -> bool:
    return logging.getLogger(LOGGER).isEnabledFor(level)


def configure(how: str) -> None:
    """Have the worker log to its stderr as well, in one of the ways of the standard library."""
    form = "there: %(message)s"
    if how == "dictConfig":
        # Many configure the root logger like this, though nothing is above it.
        root = {"handlers": ["h"], "propagate": False}
        handler = {"class": "logging.StreamHandler", "formatter": "f"}
        config = {"formatters": {"f": {"format": form}}, "handlers": {"h": handler}}
        logging.config.dictConfig({"version": 1, **config, "loggers": {"": root}})
    else:
        logging.basicConfig(format=form, force=how == "force")


def switch_off() -> None:
    logging.getLogger().parent = None


FORGED = "one\x1b[2J\r\n2026-01-01 CRITICAL \x1b[31mforged"


def forge_and_die() -> NoReturn:
    """Say what looks like another record, in all ways that there are, and die."""
    try:
        forge_error()
    except ValueError:
        logger = logging.getLogger(LOGGER)
        logger.exception(FORGED, extra={"tenant": FORGED})
    jobs.say(f"{FORGED}\n", f"Fatal Python error: {FORGED}\n")
    os._exit(3)


def forge_error() -> NoReturn:
    error = ValueError(FORGED)
    error.add_note(FORGED.partition("\n")[2])
    raise error


def log_at_start() -> None:
    log("at the start", level=logging.WARNING)
