"""Decide whether a job whose worker died, or that raised, is tried again.

An attempt is counted when a worker may have begun the job, before the worker can
die of it: a counter that waits for a handled failure never sees a SIGKILL.
A job that a dead worker had received but not begun loses nothing, a few times over:
a worker that dies before it can even mark a job as begun would otherwise pass the
same job on for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncpool._core.base.validation import INT, check_type
from asyncpool._core.wire.frames import MAX_ATTEMPTS
from asyncpool.enums import CrashKind, Delivery

DEFAULT_RETRY_ON = (CrashKind.CRASH, CrashKind.HUNG)

# As users may write them.
CrashKindText = Literal["crash", "failed start", "out of memory", "hung", "protocol"]

# What an attempt may follow, in words.
RETRIED = "kinds of crashes and types of exceptions"

# How often a job may come back unbegun before that costs it an attempt.
MAX_FREE_RETURNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPolicy:
    """How often a job may be started, and after what.

    Args:
        max_attempts: The most times a worker may start the job.
        retry_on: Kinds of crash after which there is another attempt, and types of
            exceptions: if the job raises one of those, it is tried again too.

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
        self, *, kind: CrashKind, delivery: Delivery, attempt: int, returns: int
    ) -> bool:
        """Tell whether the job goes back to the queue after its worker crashed.

        Args:
            kind: What happened to the worker.
            delivery: How far the job had come.
            attempt: Attempts counted so far, this one included if it had begun.
            returns: How often the job has come back unbegun already.
        """
        if delivery is not Delivery.STARTED and returns < MAX_FREE_RETURNS:
            return True
        return attempt < self.max_attempts and kind in self.retry_on

    def after_exception(self, error: BaseException, *, attempt: int) -> bool:
        """Tell whether the job is tried again after it raised *error*.

        An exception is of a type as an ``except`` clause sees it: a metaclass has no say.
        """
        if attempt >= self.max_attempts:
            return False
        types = [item for item in self.retry_on if isinstance(item, type)]
        return any(type.__subclasscheck__(cls, type(error)) for cls in types)


def _is_exception_type(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, BaseException)
