"""How many coroutines a second run in workers."""

from benchmarks import coroutine_work
from benchmarks.base import (
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    rate_of,
    workers_of,
)
from benchmarks.peers import Call

IN_FLIGHT = 1000


def measure(bench: Bench) -> Reading:
    """Keep 1000 coroutines in flight that await ``asyncio.sleep(0)``."""
    seconds = bench.scale.seconds

    async def body(call: Call) -> dict[str, float]:
        await workers_of(call, WORKERS)
        run = bench.peer.coroutines()
        rate = await rate_of(
            run, coroutine_work.doze, in_flight=IN_FLIGHT, seconds=seconds
        )
        return {"rate": rate}

    return Reading(bench.run(body))


QUESTION = Question(
    "async",
    "Coroutines, 1000 in flight",
    (Figure("rate", "asyncio.sleep(0)", "jobs/s", more_is_better=True),),
    measure,
    limit=30,
    only=("asyncpool", "asyncpool+uvloop", "aiomultiprocess"),
    extra=("asyncpool-32",),
)
