"""Decide whether a job is tried again after its worker died, or after it raised.

The pool counts an attempt as soon as a worker may have begun the job, and not only when
the attempt has failed.  A counter that waits for a handled failure would never count a
SIGKILL.

A worker may die with jobs that it had received but not begun.  That costs such a job no
attempt the first few times.  After that it does: a worker that dies before it can mark
a job as begun would otherwise pass the same job on for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncpool._core.base.validation import INT, check_type
from asyncpool._core.wire.frames import MAX_ATTEMPTS
from asyncpool.enums import CrashKind, Delivery

DEFAULT_RETRY_ON = (CrashKind.CRASH, CrashKind.HUNG)

# The kinds of crash, as users may write them.
CrashKindText = Literal["crash", "failed start", "out of memory", "hung", "protocol"]

# What another attempt may follow, in words.
RETRIED = "kinds of crashes and types of exceptions"

# How often a job may come back without having begun, before that costs it an attempt.
MAX_FREE_RETURNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPolicy:
    """How often a job may be started, and after what.

    Args:
        max_attempts: How many times, at the most, workers may start the job.
        retry_on: Kinds of crash after which there is another attempt, and types of
            exceptions: if the job raises one of those, the pool tries it again too.

    Raises:
        ValueError: If *max_attempts* is out of range or a kind is unknown.
        TypeError: If *max_attempts* is no int, or an element of *retry_on* is neither a
            kind nor a type of exception.
    """

    max_attempts: int = 1
    retry_on: tuple[CrashKind | CrashKindText | type[BaseException], ...] = (
        DEFAULT_RETRY_ON
    )

    def __post_init__(self) -> None:
        check_type("max_attempts", self.max_attempts, INT)
        if not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise ValueError(
                f"max_attempts must be between 1 and {MAX_ATTEMPTS}, "
                f"not {self.max_attempts}"
            )
        for item in self.retry_on:
            if isinstance(item, str):
                if item not in set(CrashKind):
                    raise ValueError(
                        f"retry_on names {item!r}, which is no kind of crash; "
                        f"there are: {', '.join(sorted(CrashKind))}"
                    )
            elif not _is_exception_type(item):
                raise TypeError(f"retry_on takes {RETRIED}, not {item!r}")

    def after_crash(
        self, *, kind: CrashKind, delivery: Delivery, attempt: int, times_returned: int
    ) -> bool:
        """Tell whether the job goes back to the queue after its worker crashed.

        Args:
            kind: What happened to the worker.
            delivery: How far the job had got.
            attempt: Which attempt this was.
            times_returned: How often the job has already come back without having begun.
        """
        if not costs_attempt(delivery=delivery, times_returned=times_returned):
            return True
        return attempt < self.max_attempts and kind in self.retry_on

    def after_exception(self, error: BaseException, *, attempt: int) -> bool:
        """Tell whether the job is tried again after it raised *error*.

        The check of types is the one that an ``except`` clause makes, which ignores
        what a metaclass says.
        """
        if attempt >= self.max_attempts:
            return False
        types = [item for item in self.retry_on if isinstance(item, type)]
        return any(type.__subclasscheck__(cls, type(error)) for cls in types)


def costs_attempt(*, delivery: Delivery, times_returned: int) -> bool:
    """Tell whether a job that may be the cause of a crash has lost an attempt by it.

    Args:
        delivery: How far the job had got.
        times_returned: How often the job has already come back without having begun.
    """
    return delivery is Delivery.STARTED or times_returned >= MAX_FREE_RETURNS


def begun_attempts(*, attempts: int, times_returned: int) -> int:
    """Return how many of *attempts* had begun; see :func:`costs_attempt` for the others."""
    return attempts - max(0, times_returned - MAX_FREE_RETURNS)


def _is_exception_type(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, BaseException)
