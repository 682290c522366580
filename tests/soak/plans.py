"""Draw jobs, and say what each of them may end with by itself."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from asyncpool import JobTimeoutError
from tests.helpers.large import Block, pattern
from tests.soak import work
from tests.soak.climates import Climate

__all__ = ["Plan", "draw_plan"]

# Seconds: short enough for a soak, and so long that a loaded machine keeps them.
_SHORT = (0.1, 0.4, 1.0)


class Plan(NamedTuple):
    """A job to be, but for its key.

    Attributes:
        kind: What the table at the end calls it.
        function: What it calls, with the path of the book, its key and
        args: these.
        options: Its options.
        good: Tells whether a value is right, without the signature.
        ends: What it may end with by itself.
        max_attempts: How often it may be started.
    """

    kind: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    good: Callable[[tuple[Any, ...]], bool]
    ends: frozenset[str]
    max_attempts: int


def _plan(
    kind: str,
    function: Callable[..., Any],
    *args: Any,
    good: Callable[..., bool] = lambda *_: False,
    ends: str = "value",
    **options: Any,
) -> Plan:
    return Plan(
        kind=kind,
        function=function,
        args=args,
        options=options,
        good=lambda rest: good(*rest),
        ends=frozenset(ends.split("|")),
        max_attempts=options.get("max_attempts", 1),
    )


def _is(*expected: object) -> Callable[..., bool]:
    return lambda *rest: rest == expected


def square(rng: Random, _: Climate) -> Plan:
    number = rng.randrange(1 << 40)
    return _plan("square", work.square, number, good=_is(number * number))


def nap(rng: Random, _: Climate) -> Plan:
    seconds = rng.choice((0.0, 0.002, 0.01, 0.1, 0.5))
    return _plan("nap", work.nap, seconds, good=_is(seconds))


def compute(rng: Random, _: Climate) -> Plan:
    seconds = rng.choice((0.001, 0.02, 0.2))
    return _plan("compute", work.compute, seconds, good=_is(seconds))


def large_block(rng: Random, _: Climate) -> Plan:
    size = rng.choice((50_000, 70_000, 1_000_000, 8_000_000))
    data = pattern(size, rng.randrange(1000))
    there, back = zlib.crc32(data), zlib.crc32(data[::-1])

    def good(checksum: int, block: Block) -> bool:
        return (checksum, zlib.crc32(block.data)) == (there, back)

    return _plan("large block", work.turn_round, Block(data), good=good)


def large_table(rng: Random, _: Climate) -> Plan:
    size, salt = rng.choice((1_000, 30_000, 100_000)), rng.randrange(1000)
    table = {number: f"{salt}-{number}" for number in range(size)}

    def good(back: dict[str, int]) -> bool:
        return len(back) == size and all(
            back[value] == number for number, value in table.items()
        )

    return _plan("large table", work.exchange, table, good=good)


def talk(rng: Random, _: Climate) -> Plan:
    lines = rng.choice((1, 20, 300))
    return _plan("talk", work.talk, lines, good=_is(lines))


def retire(_: Random, __: Climate) -> Plan:
    return _plan("retire", work.retire, good=_is("retired"))


def leak(rng: Random, climate: Climate) -> Plan:
    size, seconds = rng.choice(((10, 0.0), (60, 0.0), (60, 0.3)))
    if climate.limits.hard_rss is not None and rng.random() < 0.5:
        size, seconds = 150, 0.6  # so long that somebody looks
    return _plan("leak", work.leak, size << 20, seconds, good=_is(size << 20))


def fork(rng: Random, climate: Climate) -> Plan:
    # What has left its worker's group is out of reach when the launcher is dead, too.
    new_session = not climate.launcher and rng.random() < 0.5
    return _plan("fork", work.fork, new_session, good=_is("forked"))


def thread(_: Random, __: Climate) -> Plan:
    return _plan("raise in thread", work.raise_in_thread, good=_is("raised"))


def fail(rng: Random, _: Climate) -> Plan:
    most, attempt = rng.choice(((1, 9), (3, 2), (3, 3), (3, 9)))
    return _plan(
        "raise",
        work.fail_before,
        attempt,
        good=_is("passed"),
        ends="value" if attempt <= most else "raised",
        max_attempts=most,
        retry_on=[work.OwnError, "crash", "hung"],
    )


def die(rng: Random, _: Climate) -> Plan:
    most, attempt = rng.choice(((1, 9), (2, 2), (3, 2), (3, 9)))
    return _plan(
        "die",
        work.die_before,
        attempt,
        rng.choice(sorted(work.DEATHS)),
        good=_is("survived"),
        ends="value" if attempt <= most else "crash",
        max_attempts=most,
    )


def count(rng: Random, climate: Climate) -> Plan:
    steps, die_at = rng.choice((20, 100)), rng.choice((0, 7, 20))
    calm = not climate.ambient

    def good(start: int, stop: int) -> bool:
        return stop == steps and (start == die_at if calm else 0 <= start <= steps)

    return _plan(
        "count",
        work.count,
        steps,
        die_at,
        good=good,
        max_attempts=3,
        heartbeat_timeout=20.0,
    )


def hang(rng: Random, climate: Climate) -> Plan:
    """Hang in one of the ways, and be found in one of the ways."""
    most, attempt = rng.choice(((1, 9), (2, 2), (2, 9)))
    how = rng.choice(sorted(work.HANGS))
    seconds = rng.choice(_SHORT)
    found_by = rng.choice(("timeout", "heartbeat", "deadline"))
    if climate.health and how in {"gil", "stop"} and rng.random() < 0.5:
        found_by = "ping"
    ways: dict[str, dict[str, Any]] = {
        "timeout": {"timeout": seconds, "retry_on": [JobTimeoutError, "crash", "hung"]},
        "heartbeat": {"heartbeat_timeout": seconds},
        "deadline": {"within": seconds + 0.5},
        "ping": {},
    }
    bad = {"timeout": "timeout", "deadline": "deadline"}.get(found_by, "hung")
    ends = {bad}
    if attempt <= most:
        # A loaded machine may need all of its time for the good attempt.  After a
        # deadline there is none, but the first one may have died before.
        ends.add("value")
    if climate.health and how in {"gil", "stop"}:
        ends.add("hung")
    if climate.stops and how == "stop":
        ends.add("value")  # who lets another stop end lets this one end too
    return _plan(
        f"hang, {found_by}",
        work.hang_before,
        attempt,
        how,
        good=_is("moved"),
        ends="|".join(sorted(ends)),
        max_attempts=most,
        # "wait" would leave it there for ever.
        on_cancel=rng.choice(("interrupt", "kill")),
        cancel_grace=rng.choice((0.0, 0.2)),
        **ways[found_by],
    )


def clean_up(rng: Random, _: Climate) -> Plan:
    return _plan(
        "clean up",
        work.clean_up,
        rng.choice((0.05, 0.3, 1.0)),
        ends="timeout",
        timeout=rng.choice(_SHORT),
        on_cancel=rng.choice(("interrupt", "kill")),
        cancel_grace=rng.choice((0.1, 0.5)),
    )


def wait_little(rng: Random, _: Climate) -> Plan:
    seconds = rng.choice((0.001, 0.05, 0.5))
    return _plan(
        "queue timeout",
        work.nap,
        0.01,
        good=_is(0.01),
        ends="value|queue_timeout",
        queue_timeout=seconds,
    )


def return_lock(_: Random, __: Climate) -> Plan:
    return _plan("return a lock", work.return_lock, ends="not picklable")


def leave_politely(_: Random, __: Climate) -> Plan:
    return _plan("sys.exit", work.leave_politely, ends="raised SystemExit")


# What is drawn, and how often.
_RECIPES: dict[Callable[[Random, Climate], Plan], int] = {
    square: 30,
    nap: 12,
    compute: 8,
    large_block: 6,
    large_table: 3,
    talk: 3,
    retire: 2,
    leak: 2,
    fork: 2,
    thread: 1,
    fail: 6,
    die: 5,
    count: 4,
    hang: 5,
    clean_up: 3,
    wait_little: 3,
    return_lock: 1,
    leave_politely: 1,
}


def draw_plan(rng: Random, climate: Climate) -> Plan:
    """Draw a job for a pool in this climate."""
    [recipe] = rng.choices(list(_RECIPES), list(_RECIPES.values()))
    plan = recipe(rng, climate)
    if rng.random() < 0.3:
        plan.options["priority"] = rng.randrange(-2, 3)
    if rng.random() < 0.2:
        how = rng.choice(("interrupt", "kill", "wait"))
        plan.options.setdefault("on_cancel", how)
    return plan
