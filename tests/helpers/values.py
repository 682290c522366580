"""Values and exceptions that are hard to send."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from typing import Any, NoReturn

from tests.helpers.patience import PATIENCE

__all__: list[str] = []


class Slow:
    """A text that takes its time to be pickled.

    Attributes:
        begun: Is set when somebody pickles it.
        go_on: Lets that end.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        return str, (self.text,)


class NeedsTwoError(Exception):
    """Cannot be made from its own ``args``."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}")
        self.left = left
        self.right = right


class NeedsKeywordError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__("failed")
        self.code = code


class SlottedError(Exception):
    __slots__ = ("code", "unset")

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class HoldsLockError(Exception):
    """Cannot be pickled at all."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class HostileError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text for you")

    def __reduce__(self) -> NoReturn:
        raise ValueError("no pickle for you")


@dataclass
class Point:
    x: float
    y: float

    def scaled(self, factor: float) -> Point:
        return Point(self.x * factor, self.y * factor)

    @classmethod
    def origin(cls) -> Point:
        return cls(0, 0)

    @staticmethod
    def dimensions() -> int:
        return 2

    def __call__(self) -> float:
        return self.x + self.y


class OnlyThere:
    """Pickles in a worker, and cannot be unpickled by the pool."""

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()


def refuse() -> NoReturn:
    raise ValueError("not here")


def make_only_there() -> OnlyThere:
    return OnlyThere()


def make_lock() -> Any:
    return threading.Lock()


class Unpicklable:
    def __reduce__(self) -> NoReturn:
        raise TypeError("not for sale")


class FailsTwice:
    """Two picklings fail, those of the call as a whole, and then one does not."""

    left = 2

    def __reduce__(self) -> tuple[Any, ...]:
        self.left -= 1
        if self.left >= 0:
            raise RuntimeError("not yet")
        self.left = 2  # for the other event loop
        return FailsTwice, ()


class ExplodesHere:
    """Raises, whatever it is, when the pool pickles it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> NoReturn:
        raise self.error


class InterruptedHere:
    """Gets a signal, as by Ctrl-C, while the pool pickles it."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        signal.raise_signal(self.number)
        return str, ()


class SlyError(ValueError):
    """Says that it is of another class, and ends whoever believes it."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise SystemExit("not of any class")


def raise_sly() -> NoReturn:
    raise SlyError("sly")


class _ExitsOnQuestions(type):
    def __instancecheck__(cls, _: object) -> bool:
        raise SystemExit("asked")


class AskedError(Exception, metaclass=_ExitsOnQuestions):
    """Its class ends whoever asks whether something is of it."""


class ExplodesThere:
    """Pickles here, and raises in the worker."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return explode, (self.error,)


class ExplodesElsewhere:
    """Pickles in a worker, and raises in any other process."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return explode_elsewhere, (self.error, os.getpid())


def explode_elsewhere(error: BaseException, home: int) -> None:
    if os.getpid() != home:
        raise error


def make_explode_elsewhere(error: BaseException) -> ExplodesElsewhere:
    return ExplodesElsewhere(error)


def explode(error: BaseException) -> NoReturn:
    raise error


def raise_needs_two() -> NoReturn:
    raise NeedsTwoError("salt", "pepper")


def raise_slotted() -> None:
    error = SlottedError("failed", 7)
    error.add_note("noted")
    raise error


def raise_needs_keyword() -> NoReturn:
    raise NeedsKeywordError(code=7)


def raise_holds_lock() -> NoReturn:
    raise HoldsLockError("the lock is mine")


def raise_hostile() -> NoReturn:
    raise HostileError(threading.Lock())


def raise_from_cause() -> None:
    try:
        float("inner")
    except ValueError as error:
        raise RuntimeError("outer") from error


def raise_group() -> NoReturn:
    raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])


def nested() -> object:
    """Return what has a repr() of 2**60 brackets."""
    value: object = ()
    for _ in range(60):
        value = value, value
    return value
