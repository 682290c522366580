"""What Prometheus and OpenTelemetry have in common: which pools they have, and for how long."""

from __future__ import annotations

import dataclasses
import gc
import re
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from asyncpool import Pool, PoolStats
from asyncpool.enums import RunState
from asyncpool.opentelemetry import instrument, uninstrument
from asyncpool.prometheus import register, unregister
from tests.helpers import scraping, spans
from tests.helpers.told_pool import SLOT, STATS, told


class Prometheus:
    """A registry."""

    cpu = "worker_cpu_seconds_total"
    queued = "jobs_queued"
    submitted = "jobs_submitted_total"
    twice = "pool images is already registered in this registry"
    namesake = (
        "another pool called images is registered in this registry: give one of them another "
        "name, or unregister() the other one first"
    )
    missing = "pool images is not registered in this registry"

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

    def add(self, pool: Pool) -> None:
        register(pool, self._registry)

    def remove(self, pool: Pool) -> None:
        unregister(pool, self._registry)

    def value(self, name: str, pool: str = "images") -> float:
        return self._figures().get(name, pool=pool)

    def is_empty(self) -> bool:
        return not self._figures().labels("pool")

    def _figures(self) -> scraping.Figures:
        return scraping.Figures(generate_latest(self._registry).decode())


class OpenTelemetry:
    """A provider of meters."""

    cpu = "asyncpool.worker.cpu.time"
    queued = "asyncpool.job.queue.length"
    submitted = "asyncpool.job.submitted"
    twice = "pool images is already instrumented: uninstrument() it first"
    namesake = (
        "another pool called images is instrumented: give one of them another name, or "
        "uninstrument() the other one first"
    )
    missing = "pool images is not instrumented"

    def __init__(self) -> None:
        self._figures = spans.Figures()

    def add(self, pool: Pool) -> None:
        instrument(pool, meter_provider=self._figures.provider, spans=False)

    def remove(self, pool: Pool) -> None:
        uninstrument(pool)

    def value(self, name: str, pool: str = "images") -> float:
        found: float = self._figures.values(name, **{"pool.name": pool})
        return found

    def is_empty(self) -> bool:
        return not self._figures.points()


Exporter = Prometheus | OpenTelemetry


@pytest.fixture(params=[Prometheus, OpenTelemetry])
def exporter(request: pytest.FixtureRequest) -> Exporter:
    made: Exporter = request.param()
    return made


def test_cpu_time_never_goes_back(exporter: Exporter) -> None:
    """Between the end of a worker and its report, nobody has its CPU time."""
    pool = told()
    exporter.add(pool)
    found = []
    for exited, slots in ((10.0, (SLOT,)), (10.0, ()), (11.6, ()), (11.6, (SLOT,))):
        pool.told = dataclasses.replace(STATS, exited_cpu=exited, slots=slots)
        found.append(exporter.value(exporter.cpu))
    assert found == [11.5, 11.5, 11.6, 13.1]


def test_several_pools_are_told_apart_and_each_is_there_once(
    exporter: Exporter,
) -> None:
    first, second = told(), told(dataclasses.replace(STATS, queued=2), name="mail")
    exporter.add(first)
    exporter.add(second)
    for again, text in ((first, exporter.twice), (told(), exporter.namesake)):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            exporter.add(again)
    assert exporter.value(exporter.queued) == 17
    assert exporter.value(exporter.queued, "mail") == 2


def test_one_is_taken_out_again(exporter: Exporter) -> None:
    pool = told()
    missing = pytest.raises(ValueError, match=f"^{exporter.missing}$")
    with missing:
        exporter.remove(pool)
    exporter.add(pool)
    with missing:
        exporter.remove(told())
    exporter.remove(pool)
    assert exporter.is_empty()
    with missing:
        exporter.remove(pool)
    exporter.add(pool)
    assert exporter.value(exporter.queued) == 17


def test_a_closed_pool_leaves_its_name_to_a_new_one(exporter: Exporter) -> None:
    closed = told()
    exporter.add(closed)
    closed.told = PoolStats(state=RunState.CLOSED, workers=1, submitted=7)
    assert exporter.value(exporter.submitted) == 7
    pool = told()
    exporter.add(pool)
    assert exporter.value(exporter.submitted) == 40


def test_a_pool_that_is_gone_drops_out(exporter: Exporter) -> None:
    pool = told()
    exporter.add(pool)
    del pool
    gc.collect()
    assert exporter.is_empty()
    again = told()
    exporter.add(again)
    assert exporter.value(exporter.queued) == 17


@pytest.mark.parametrize(
    ("module", "missing", "needs"),
    [
        ("prometheus", "prometheus_client", "prometheus_client"),
        ("opentelemetry", "opentelemetry.context", "opentelemetry-api"),
    ],
)
def test_without_the_extra_the_import_says_how_to_install_it(
    module: str, missing: str, needs: str
) -> None:
    code = (
        f"import sys; sys.modules[{missing.partition('.')[0]!r}] = None\n"
        "import asyncpool.pool\n"
        f"try:\n    import asyncpool.{module}\n"
        "except ModuleNotFoundError as error:\n    print(error.name, error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout == (
        f"{missing} asyncpool.{module} needs {needs}, which is not installed: "
        f"pip install 'asyncpool-supervised[{module}]'\n"
    )
