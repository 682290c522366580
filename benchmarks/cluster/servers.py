"""The servers, and how each is started: as its documentation does, with its defaults.

What is set is what makes them comparable: the loop, the number of workers, no line of
log for every request.  Those on uvicorn parse with httptools, asyncpool's among them.
granian replaces dead workers only if it is told to, so it is told to.
"""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass

APP = "benchmarks.cluster.app:app"


@dataclass(frozen=True)
class Place:
    """Where a server is to listen, with how many workers, and on which loop."""

    port: int
    workers: int
    loop: str

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Server:
    """*command* starts it; all of them reload on SIGHUP, each in its own way."""

    label: str
    package: str
    command: Callable[[Place], list[str]]

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


def run_module(module: str, *options: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, options)]


def asyncpool(spread: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        options = ("--workers", place.workers, "--spread", spread, "--loop", place.loop)
        return run_module("asyncpool", "serve", APP, "--bind", place.address, *options)

    return command


def uvicorn(place: Place) -> list[str]:
    options = ("--workers", place.workers, "--loop", place.loop, "--no-access-log")
    return run_module("uvicorn", APP, "--port", place.port, *options)


def gunicorn(place: Place) -> list[str]:
    worker = f"benchmarks.cluster.gunicorn_workers.{place.loop.title()}Worker"
    options = ("--workers", place.workers, "--worker-class", worker)
    return run_module("gunicorn", "--bind", place.address, *options, APP)


def granian(place: Place) -> list[str]:
    options = ("--workers", place.workers, "--loop", place.loop)
    asked = ("--interface", "asgi", "--respawn-failed-workers")
    return run_module("granian", "--port", place.port, *options, *asked, APP)


def hypercorn(place: Place) -> list[str]:
    options = ("--workers", place.workers, "--worker-class", place.loop)
    return run_module("hypercorn", "--bind", place.address, *options, APP)


SERVERS = {
    "handoff": Server("asyncpool, handoff", "asyncpool", asyncpool("handoff")),
    "shared": Server("asyncpool, shared", "asyncpool", asyncpool("shared")),
    "uvicorn": Server("uvicorn --workers", "uvicorn", uvicorn),
    "gunicorn": Server("gunicorn, uvicorn workers", "gunicorn", gunicorn),
    "granian": Server("granian", "granian", granian),
    "hypercorn": Server("hypercorn", "hypercorn", hypercorn),
}
OURS = ("handoff", "shared")
BASELINE = "uvicorn"
DISTRIBUTIONS = (
    *("uvicorn", "gunicorn", "uvicorn-worker", "granian", "hypercorn"),
    *("httptools", "uvloop"),
)


def label(row: str) -> str:
    """Name *row* as the tables and plots do."""
    name, _, loop = row.partition("+")
    return SERVERS[name].label + (", asyncio" if loop == "asyncio" else "")
