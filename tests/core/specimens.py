"""Values and exceptions that are hard to send, at module level as pickle wants it."""

# ruff: noqa: N818 - they are called after their trouble

from __future__ import annotations

import dataclasses
import sys
import threading
from typing import Any, NoReturn

LOCK = threading.Lock()  # nothing can pickle this


class NeedsTwo(Exception):
    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}")
        self.left, self.right = left, right


class NeedsKeyword(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__("failed")
        self.code = code


class MakesItsMessage(Exception):
    # Calling it with its own args works, and gives another message.
    def __init__(self, reason: str) -> None:
        super().__init__(f"because {reason}")


class AddsDefaults(Exception):
    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class SaysItItself(Exception):
    def __init__(self, *, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    # Not even ``raise ... from ...`` can change one of these.
    reason: str
    code: int


class NoFile(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "no such file", path)


class NoModule(ImportError):
    def __init__(self, *, missing: str) -> None:
        super().__init__(f"no {missing}", name=missing)


class HoldsALock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = LOCK


class HostileStr(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class HostileStrThatExits(Exception):
    def __init__(self) -> None:
        super().__init__(LOCK)

    def __str__(self) -> str:
        raise SystemExit("no text for you")


class HostileReduce(Exception):
    def __reduce__(self) -> NoReturn:
        raise RuntimeError("no pickle for you")


class HostileReduceThatExits(Exception):
    def __reduce__(self) -> NoReturn:
        sys.exit("no pickle for you")


class HostileReduceThatLies(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return ValueError, ("I was something else",)


HOME = {"here": True}


def loads_only_at_home(*args: object) -> Exception:
    if HOME["here"]:
        return Homesick(*args)
    raise LookupError("far from home")


class Homesick(Exception):
    """Can be unpickled where it was raised, and nowhere else."""

    def __reduce__(self) -> tuple[Any, ...]:
        return loads_only_at_home, self.args


def a_number_abroad(*args: object) -> object:
    return Changeling(*args) if HOME["here"] else 17


class Changeling(Exception):
    """Unpickles to an exception where it was raised, and to a number elsewhere."""

    def __reduce__(self) -> tuple[Any, ...]:
        return a_number_abroad, self.args


class ExitsWhenLoaded:
    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, ("loaded",)


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


class InterruptsWhenLoaded:
    def __reduce__(self) -> tuple[Any, ...]:
        return interrupt, ()


class FailsWhenLoaded:
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


class Counter:
    def __init__(self, start: int) -> None:
        self.start = start

    def plus(self, amount: int = 1, *, times: int = 1) -> int:
        return self.start + amount * times

    @classmethod
    def fresh(cls) -> int:
        return cls(7).start


def add(left: int, right: int = 0) -> int:
    return left + right
