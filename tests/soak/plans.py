"""Draw jobs, and say what each of them may end with by itself."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from asyncpool.errors import JobTimeoutError
from tests.helpers.large import Block, pattern
from tests.soak import work
from tests.soak.climates import Climate

# Few, so that jobs of the same key meet.
_KEYS = 4


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


def make_plan(
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


def is_(*expected: object) -> Callable[..., bool]:
    return lambda *rest: rest == expected


def draw_options(rng: Random) -> dict[str, Any]:
    """Draw how urgent a job, a stream or a map is, and which worker it is for."""
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["priority"] = rng.randrange(-2, 3)
    return options | draw_key(rng, 0.1)


def draw_key(rng: Random, share: float) -> dict[str, Any]:
    """Draw which worker a job is for; but for that *share*, they are for any."""
    if rng.random() >= share:
        return {}
    return {"key": f"key {rng.randrange(_KEYS)}"}


__all__ = [
    "Plan",
    "draw_key",
    "draw_options",
    "draw_plan",
    "is_",
    "make_plan",
    "square",
]

# Seconds: short enough for a soak, and so long that a loaded machine keeps them.
_SHORT = (0.1, 0.4, 1.0)


def square(rng: Random, _: Climate) -> Plan:
    number = rng.randrange(1 << 40)
    return make_plan("square", work.square, number, good=is_(number * number))


def nap(rng: Random, _: Climate) -> Plan:
    seconds = rng.choice((0.0, 0.002, 0.01, 0.1, 0.5))
    return make_plan("nap", work.nap, seconds, good=is_(seconds))


def compute(rng: Random, _: Climate) -> Plan:
    seconds = rng.choice((0.001, 0.02, 0.2))
    return make_plan("compute", work.compute, seconds, good=is_(seconds))


def large_block(rng: Random, _: Climate) -> Plan:
    size = rng.choice((50_000, 70_000, 1_000_000, 8_000_000))
    data = pattern(size, rng.randrange(1000))
    there, back = zlib.crc32(data), zlib.crc32(data[::-1])

    def good(checksum: int, block: Block) -> bool:
        return (checksum, zlib.crc32(block.data)) == (there, back)

    return make_plan("large block", work.turn_round, Block(data), good=good)


def large_table(rng: Random, _: Climate) -> Plan:
    size, salt = rng.choice((1_000, 30_000, 100_000)), rng.randrange(1000)
    table = {number: f"{salt}-{number}" for number in range(size)}

    def good(back: dict[str, int]) -> bool:
        return len(back) == size and all(
            back[value] == number for number, value in table.items()
        )

    return make_plan("large table", work.exchange, table, good=good)


def talk(rng: Random, _: Climate) -> Plan:
    lines = rng.choice((1, 20, 300))
    return make_plan("talk", work.talk, lines, good=is_(lines))


def retire(_: Random, __: Climate) -> Plan:
    return make_plan("retire", work.retire, good=is_("retired"))


def leak(rng: Random, climate: Climate) -> Plan:
    size, seconds = rng.choice(((10, 0.0), (60, 0.0), (60, 0.3)))
    if climate.limits.kill_memory is not None and rng.random() < 0.5:
        size, seconds = 150, 0.6  # so long that somebody looks
    return make_plan("leak", work.leak, size << 20, seconds, good=is_(size << 20))


def fork(rng: Random, climate: Climate) -> Plan:
    # What has left its worker's group is out of reach when the launcher is dead, too.
    new_session = not climate.orphans and rng.random() < 0.5
    return make_plan("fork", work.fork, new_session, good=is_("forked"))


def thread(_: Random, __: Climate) -> Plan:
    return make_plan("raise in thread", work.raise_in_thread, good=is_("raised"))


def fail(rng: Random, _: Climate) -> Plan:
    tries = rng.choice(((1, 9), (3, 2), (3, 3), (3, 9)))
    return _fail("raise", work.fail_before, *tries)


def die(rng: Random, _: Climate) -> Plan:
    tries = rng.choice(((1, 9), (2, 2), (3, 2), (3, 9)))
    return _die("die", work.die_before, *tries, rng.choice(sorted(work.DEATHS)))


def _fail(kind: str, function: Callable[..., Any], most: int, good_at: int) -> Plan:
    return make_plan(
        kind,
        function,
        good_at,
        good=is_("passed"),
        ends="value" if good_at <= most else "raised",
        max_attempts=most,
        retry_on=[work.OwnError, "crash", "hung"],
    )


def _die(
    kind: str, function: Callable[..., Any], most: int, good_at: int, *how: str
) -> Plan:
    return make_plan(
        kind,
        function,
        good_at,
        *how,
        good=is_("survived"),
        ends="value" if good_at <= most else "crash",
        max_attempts=most,
    )


def count(rng: Random, climate: Climate) -> Plan:
    steps, die_at = rng.choice((20, 100)), rng.choice((0, 7, 20))
    calm = not climate.ambient

    def good(start: int, stop: int) -> bool:
        return stop == steps and (start == die_at if calm else 0 <= start <= steps)

    return make_plan(
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
    return make_plan(
        f"hang, {found_by}",
        work.hang_before,
        attempt,
        how,
        good=is_("moved"),
        ends="|".join(sorted(ends)),
        max_attempts=most,
        # "wait" would leave it there for ever.
        on_cancel=rng.choice(("interrupt", "kill")),
        cancel_grace=rng.choice((0.0, 0.2)),
        **ways[found_by],
    )


def clean_up(rng: Random, _: Climate) -> Plan:
    return make_plan(
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
    return make_plan(
        "queue timeout",
        work.nap,
        0.01,
        good=is_(0.01),
        ends="value|queue_timeout",
        queue_timeout=seconds,
    )


def return_lock(_: Random, __: Climate) -> Plan:
    return make_plan("return a lock", work.return_lock, ends="not picklable")


def leave_politely(_: Random, __: Climate) -> Plan:
    return make_plan("sys.exit", work.leave_politely, ends="raised SystemExit")


def a_nap(rng: Random, _: Climate) -> Plan:
    seconds = rng.choice((0.0, 0.01, 0.1, 0.5))
    return make_plan("async nap", work.a_nap, seconds, good=is_(seconds))


def a_many(rng: Random, _: Climate) -> Plan:
    tasks = rng.choice((1, 20, 200))
    return make_plan("async tasks", work.a_many, tasks, good=is_(tasks))


def a_fail(rng: Random, _: Climate) -> Plan:
    tries = rng.choice(((1, 9), (3, 2), (3, 9)))
    return _fail("async raise", work.a_fail_before, *tries)


def a_die(rng: Random, _: Climate) -> Plan:
    tries = rng.choice(((1, 9), (2, 2)))
    return _die("async die", work.a_die_before, *tries)


def a_wait(rng: Random, _: Climate) -> Plan:
    """Wait in a coroutine until its time is over; some take time to clean up."""
    return make_plan(
        "async wait",
        work.a_wait,
        rng.choice((0.0, 0.0, 0.3)),
        ends="timeout",
        timeout=rng.choice(_SHORT),
        on_cancel=rng.choice(("interrupt", "interrupt", "kill")),
        cancel_grace=rng.choice((0.1, 0.5)),
    )


def lose_lease(rng: Random, _: Climate) -> Plan:
    """Wait until the lease is gone, which is the only end."""
    return make_plan(
        "lose a lease",
        rng.choice((work.a_wait, work.clean_up)),
        0.0,
        ends="cancelled",
        beats=rng.choice((1, 2)),
        on_cancel=rng.choice(("interrupt", "kill")),
        cancel_grace=rng.choice((0.1, 0.5)),
    )


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
    lose_lease: 3,
}
_ASYNC: dict[Callable[[Random, Climate], Plan], int] = {
    a_nap: 8,
    a_many: 3,
    a_fail: 3,
    a_die: 1,
    a_wait: 3,
}
# The same where several of them run at once.
_OFTEN = {recipe: 8 * times for recipe, times in _ASYNC.items()}


def draw_plan(rng: Random, climate: Climate) -> Plan:
    """Draw a job for a pool in this climate."""
    recipes = _RECIPES | (_OFTEN if climate.several else _ASYNC)
    [recipe] = rng.choices(list(recipes), list(recipes.values()))
    plan = recipe(rng, climate)
    plan.options.update(draw_options(rng))
    if rng.random() < 0.2:
        how = rng.choice(("interrupt", "kill", "wait"))
        plan.options.setdefault("on_cancel", how)
    if rng.random() < 0.05:
        plan.options.setdefault("beats", rng.choice((0, 0, 1, 3)))
    return plan
