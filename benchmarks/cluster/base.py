"""What a trial of a server is made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.base import Figure
from benchmarks.cluster.servers import SERVERS

WORKERS = 2


@dataclass(frozen=True)
class Scale:
    """How much of everything; the quick one must fit into four minutes."""

    seconds: float
    reloads: int
    start: float
    killing: float
    storm: float
    deploying: float
    orphaned: float


FULL = Scale(
    seconds=8.0,
    reloads=10,
    start=3.0,
    killing=30.0,
    storm=15.0,
    deploying=10.0,
    orphaned=5.0,
)
QUICK = Scale(
    seconds=2.0,
    reloads=2,
    start=1.0,
    killing=6.0,
    storm=2.0,
    deploying=3.0,
    orphaned=2.0,
)


@dataclass(frozen=True)
class Finding:
    """What one trial of one server has found.

    *status* is ``"ok"``, or the word for what went wrong.  *timeline* is what
    :func:`benchmarks.cluster.tally.timeline` makes of requests, and *marks* are the
    moments, in seconds of the same clock, at which something was done to the server.
    """

    figures: dict[str, float]
    status: str = "ok"
    note: str = ""
    timeline: Sequence[Sequence[float]] = ()
    marks: Sequence[float] = ()
    curve: Sequence[Sequence[float]] = ()  # none, but reports ask for it


@dataclass(frozen=True)
class Trial:
    """Something to put every server through.

    *quick* are the rows of a quick run.  What takes long, and counts failures, is done
    *once* and not in each round.  uvloop is what uvicorn, gunicorn's workers and granian
    choose themselves if it is there.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]
    measure: Callable[[str, Scale], Finding]
    once: bool = False
    loops: tuple[str, ...] = ("uvloop",)
    quick: tuple[str, ...] = tuple(SERVERS)
