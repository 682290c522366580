"""Tests of asyncpool/_core/policies/attempts.py."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from asyncpool._core.policies.attempts import (
    DEFAULT_RETRY_ON,
    MAX_FREE_RETURNS,
    AttemptPolicy,
    begun_attempts,
    costs_attempt,
)
from asyncpool._core.wire.frames import MAX_ATTEMPTS
from asyncpool.enums import CrashKind, Delivery

ONCE = AttemptPolicy()
THRICE = AttemptPolicy(max_attempts=3)
OOM_TOO = AttemptPolicy(max_attempts=2, retry_on=("crash", "out of memory"))
NEVER = AttemptPolicy(max_attempts=9, retry_on=())
ON_LOOKUP = AttemptPolicy(max_attempts=2, retry_on=(LookupError, SystemExit))


@pytest.mark.parametrize(
    ("policy", "kind", "delivery", "attempt", "times_returned", "again"),
    [
        # A job that may have had effects is never run twice unasked.
        (ONCE, "crash", "started", 1, 0, False),
        (ONCE, "hung", "started", 1, 0, False),
        # Up to max_attempts starts, and not one more.
        (THRICE, "crash", "started", 1, 0, True),
        (THRICE, "crash", "started", 2, 0, True),
        (THRICE, "crash", "started", 3, 0, False),
        # By default after a crash or a hang; an OOM kill would happen again.
        (THRICE, "hung", "started", 1, 0, True),
        (THRICE, "out of memory", "started", 1, 0, False),
        (THRICE, "protocol", "started", 1, 0, False),
        (THRICE, "failed start", "started", 1, 0, False),
        (OOM_TOO, "out of memory", "started", 1, 0, True),
        (OOM_TOO, "hung", "started", 1, 0, False),
        (OOM_TOO, "out of memory", "started", 2, 0, False),
        (NEVER, "crash", "started", 1, 0, False),
        (ON_LOOKUP, "crash", "started", 1, 0, False),
        # A job that had not begun loses nothing, whatever the policy.
        (ONCE, "crash", "sent", 1, 0, True),
        (ONCE, "protocol", "never sent", 1, 0, True),
        (NEVER, "out of memory", "sent", 1, 0, True),
        # But not for ever.
        (ONCE, "crash", "sent", 1, MAX_FREE_RETURNS - 1, True),
        (ONCE, "crash", "sent", 1, MAX_FREE_RETURNS, False),
        (ONCE, "crash", "never sent", 1, MAX_FREE_RETURNS, False),
        (THRICE, "crash", "sent", 2, MAX_FREE_RETURNS, True),
        (THRICE, "crash", "sent", 3, MAX_FREE_RETURNS, False),
        (THRICE, "protocol", "sent", 1, MAX_FREE_RETURNS, False),
    ],
)
def test_whether_a_job_is_tried_again_after_a_crash(
    policy: AttemptPolicy,
    kind: str,
    delivery: str,
    attempt: int,
    times_returned: int,
    again: bool,  # noqa: FBT001
) -> None:
    answer = policy.after_crash(
        kind=CrashKind(kind),
        delivery=Delivery(delivery),
        attempt=attempt,
        times_returned=times_returned,
    )
    assert answer is again


@pytest.mark.parametrize(
    ("policy", "error", "attempt", "again"),
    [
        # What the function raises is its answer, unless the caller says otherwise.
        (THRICE, ValueError("x"), 1, False),
        (NEVER, ValueError("x"), 1, False),
        (ON_LOOKUP, KeyError("x"), 1, True),
        (ON_LOOKUP, KeyError("x"), 2, False),
        (ON_LOOKUP, SystemExit(1), 1, True),
        (ON_LOOKUP, ValueError("x"), 1, False),
        (AttemptPolicy(retry_on=(LookupError,)), KeyError("x"), 1, False),
    ],
)
def test_whether_a_job_is_tried_again_after_it_raised(
    policy: AttemptPolicy,
    error: BaseException,
    attempt: int,
    again: bool,  # noqa: FBT001
) -> None:
    assert policy.after_exception(error, attempt=attempt) is again


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_attempts": 0}, ValueError, "between 1 and 65535, not 0"),
        ({"max_attempts": -1}, ValueError, "between 1 and 65535, not -1"),
        ({"max_attempts": 65_536}, ValueError, "between 1 and 65535, not 65536"),
        ({"max_attempts": 2.0}, TypeError, r"max_attempts must be an int, not 2\.0"),
        ({"retry_on": ("crashed",)}, ValueError, "'crashed', which is no kind"),
        ({"retry_on": (3,)}, TypeError, "types of exceptions, not 3"),
        ({"retry_on": (int,)}, TypeError, "not <class 'int'>"),
        ({"retry_on": (ValueError("x"),)}, TypeError, r"not ValueError\('x'\)"),
    ],
)
def test_values_out_of_range_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        AttemptPolicy(**options)


def test_the_message_about_an_unknown_kind_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match="retry_on") as caught:
        AttemptPolicy(retry_on=("oom",))  # type: ignore[arg-type]
    for kind in CrashKind:
        assert kind.value in str(caught.value)
        AttemptPolicy(retry_on=(kind,))


@pytest.mark.parametrize("written", ["hung", CrashKind.HUNG], ids=["text", "member"])
def test_a_kind_may_be_written_as_text_or_as_a_member(
    written: Literal["hung"] | CrashKind,
) -> None:
    policy = AttemptPolicy(max_attempts=2, retry_on=(written,))
    again = {
        kind
        for kind in CrashKind
        if policy.after_crash(
            kind=kind, delivery=Delivery.STARTED, attempt=1, times_returned=0
        )
    }
    assert again == {CrashKind.HUNG}


def test_the_documented_defaults() -> None:
    assert AttemptPolicy() == AttemptPolicy(max_attempts=1, retry_on=("crash", "hung"))
    assert DEFAULT_RETRY_ON == ("crash", "hung")
    assert MAX_FREE_RETURNS == 3
    assert AttemptPolicy(max_attempts=MAX_ATTEMPTS).max_attempts == 65_535


def test_a_job_that_comes_back_too_often_loses_an_attempt_each_time() -> None:
    free = [
        not costs_attempt(delivery=Delivery.SENT, times_returned=times)
        for times in range(MAX_FREE_RETURNS + 2)
    ]
    assert free == [True] * MAX_FREE_RETURNS + [False] * 2
    assert costs_attempt(delivery=Delivery.STARTED, times_returned=0)


@pytest.mark.parametrize(
    ("attempts", "returned", "begun"), [(0, 3, 0), (2, 3, 2), (2, 4, 1), (2, 5, 0)]
)
def test_attempts_that_had_begun_are_told_from_the_others(
    attempts: int, returned: int, begun: int
) -> None:
    assert begun_attempts(attempts=attempts, times_returned=returned) == begun
