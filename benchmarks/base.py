"""What a question is made of, and what several of them need."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from benchmarks import work
from benchmarks.peers import Call, Peer

T = TypeVar("T")

WORKERS = 2
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Scale:
    """How much of everything; quick must fit ten rows into two minutes."""

    seconds: float
    kills: int
    heal_limit: float
    echoes: int
    tables: bool
    next_pools: int
    flood: int
    entries: int
    idle: float
    queue: int
    timeouts: int


FULL = Scale(
    1.0,
    kills=6,
    heal_limit=5,
    echoes=5,
    tables=True,
    next_pools=3,
    flood=100_000,
    entries=4_000_000,
    idle=10,
    queue=1_000_000,
    timeouts=5,
)
QUICK = Scale(
    0.25,
    kills=2,
    heal_limit=1,
    echoes=1,
    tables=False,
    next_pools=1,
    flood=2_000,
    entries=100_000,
    idle=1,
    queue=50_000,
    timeouts=1,
)


@dataclass(frozen=True)
class Figure:
    """One number of a question's answer, and which way is better."""

    key: str
    title: str
    unit: str
    more_is_better: bool = False


@dataclass(frozen=True)
class Reading:
    """What one cell measured.

    *status* is ``"ok"``, or the word for what went wrong: the figures are then
    those of what still worked, if anything did.  *samples* are the single
    measurements, or quantiles of them where there are thousands; *curve* is how the
    first figure depends on something.
    """

    figures: dict[str, float]
    samples: Sequence[float] = ()
    status: str = "ok"
    note: str = ""
    curve: Sequence[tuple[float, float]] = ()


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began


@dataclass
class Bench:
    """The peer under test, and loops of the kind it is to run on."""

    make_peer: Callable[[], Peer]
    make_loop: Callable[[], asyncio.AbstractEventLoop]
    scale: Scale
    opening: Stopwatch = field(init=False)
    peer: Peer = field(init=False)

    def __post_init__(self) -> None:
        self.peer = self.make_peer()

    def run(
        self,
        body: Callable[[Call], Coroutine[Any, Any, T]],
        *,
        workers: int = WORKERS,
        close: bool = False,
    ) -> T:
        """Run *body* against a new pool on a new loop.

        Closing is no part of any question, and a broken peer may hang there, so
        it only happens on demand; otherwise pool and loop end with the process.
        """

        async def life() -> T:
            self.opening = Stopwatch()
            answer = await body(await self.peer.open(workers))
            if close:
                await self.peer.close()
            return answer

        runner = asyncio.Runner(loop_factory=self.make_loop)
        answer = runner.run(life())
        if close:
            runner.close()
        return answer

    async def another(self, workers: int) -> tuple[Call, Callable[[], Awaitable[None]]]:
        """Open one more pool beside the first; return also what closes it."""
        peer = self.make_peer()
        return await peer.open(workers), peer.close


@dataclass(frozen=True)
class Question:
    """Something to ask of every peer.

    *limit* is in seconds, for one cell: whatever takes longer counts as hanging.
    *only* names the rows that are asked, if not all; *extra* are rows that are there for
    this question.  What takes long, and is steady, is asked *once* and not in each round.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]
    measure: Callable[[Bench], Reading]
    limit: float
    only: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    once: bool = False


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that *share* of all *values* do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def quantiles(values: Sequence[float]) -> list[float]:
    """Condense thousands of *values* to 101 that draw the same distribution."""
    ordered = sorted(values)
    return [quantile(ordered, n / 100) for n in range(101)]


async def workers_of(call: Call, workers: int, *, limit: float = 10) -> set[int]:
    """Keep the pool busy until *workers* different processes have answered."""
    pids: set[int] = set()
    async with asyncio.timeout(limit):
        while len(pids) < workers:
            naps = (call(work.nap, 0.02) for _ in range(2 * workers))
            pids.update(await asyncio.gather(*naps))
    return pids


async def pump(
    call: Call,
    fn: Callable[..., object] = work.noop,
    *args: object,
    in_flight: int,
    more: Callable[[int], bool],
) -> int:
    """Keep *in_flight* jobs, no-ops by default, going while ``more(sent)`` says so.

    Each one that lands sends the next from its callback: no task per client, so
    that as little as possible of the time is the benchmark's own.

    Returns:
        How many jobs were sent, all of which have landed.
    """
    finished: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    sent = landed = 0

    def send() -> None:
        nonlocal sent
        sent += 1
        asyncio.ensure_future(call(fn, *args)).add_done_callback(land)

    def land(job: asyncio.Future[object]) -> None:
        nonlocal landed
        landed += 1
        if finished.done():
            return
        if error := job.exception():
            finished.set_exception(error)
        elif more(sent):
            send()
        elif landed == sent:
            finished.set_result(sent)

    for number in range(in_flight):
        send()
        if number % 20 == 0:  # a service's requests come a few at a time, too
            await asyncio.sleep(0)
    return await finished


async def rate_of(
    call: Call, fn: Callable[..., object] = work.noop, *, in_flight: int, seconds: float
) -> float:
    """Return how many jobs a second land, after one round to warm up."""
    await pump(call, fn, in_flight=in_flight, more=lambda _: False)
    watch = Stopwatch()
    jobs = await pump(
        call, fn, in_flight=in_flight, more=lambda _: watch.seconds < seconds
    )
    return jobs / watch.seconds
