"""The arguments of a lease keeper, checked."""

from __future__ import annotations

import math

from asyncpool._core.base.validation import NUMBER, SECONDS, check_type, or_none
from asyncpool._core.leases.lease_ledger import GIVE_UP
from asyncpool._core.leases.renewal_pace import longest_gap
from asyncpool._runtime.base.arguments import check_int


def check_renewals(
    max_rate: float,
    interval: float,
    max_retries: int,
    timeout: float | None,
    ttl: float | None,
) -> float:
    """Check the numbers of a lease keeper, and return its *timeout*.

    Raises:
        ValueError: If one is out of range, or they do not fit each other.
        TypeError: If one is of the wrong type.
    """
    check_int("max_retries", max_retries, at_least=0)
    check_type("max_rate", max_rate, NUMBER)
    check_type("interval", interval, SECONDS)
    check_type("timeout", timeout, or_none(SECONDS))
    check_type("ttl", ttl, or_none(SECONDS))
    if timeout is None:
        timeout = interval / (2 * (1 + max_retries))
    for name, value in (
        ("max_rate", max_rate),
        ("interval", interval),
        ("timeout", timeout),
    ):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be > 0 and finite, not {value}")
    if ttl is not None:
        _check_ttl(ttl, interval, max_retries, timeout)
    # Rounding must not matter: 0.1 renewals/s for 30 s are three.
    if max_rate * interval + 1e-9 < 1:
        raise ValueError(
            f"max_rate={max_rate:g} renewals/s for interval={interval:g} s make "
            f"{max_rate * interval:g} renewals: one at least is needed"
        )
    return timeout


def _check_ttl(ttl: float, interval: float, max_retries: int, timeout: float) -> None:
    if not 0 < ttl < math.inf:
        raise ValueError(f"ttl must be > 0 and finite, not {ttl}")
    gap, most = longest_gap(interval, max_retries, timeout), GIVE_UP * ttl
    if gap > most:
        raise ValueError(
            f"an interval of {interval:g} s and {max_retries} retries, of {timeout:g} s each, can "
            f"take {gap:g} s until a lease is extended, and it is given up after {most:g} s, "
            f"nine tenths of ttl={ttl:g}: choose a shorter interval, a shorter timeout, or "
            "fewer retries"
        )
