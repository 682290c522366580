"""What OpenTelemetry collects of the figures of a pool, and what instrument() refuses."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys

import pytest
from opentelemetry.sdk.metrics.export import Metric
from opentelemetry.trace import NoOpTracerProvider

from asyncpool import Pool, PoolStats
from asyncpool.enums import RunState
from asyncpool.opentelemetry import instrument, uninstrument
from tests.helpers.spans import Figures
from tests.helpers.told_pool import SLOT, STATS, told


@pytest.fixture
def figures() -> Figures:
    return Figures()


def watch(pool: Pool, figures: Figures) -> None:
    instrument(pool, meter_provider=figures.provider, spans=False)


def metrics(figures: Figures) -> list[Metric]:
    data = figures.reader.get_metrics_data()
    assert data is not None
    [resource] = data.resource_metrics
    [scope] = resource.scope_metrics
    assert scope.scope.name == "asyncpool"
    return list(scope.metrics)


def test_each_figure_is_exported(figures: Figures) -> None:
    pool = told()
    watch(pool, figures)
    points = figures.points()
    plain = {
        name: point.value
        for name, points_of in points.items()
        if len(points_of) == 1
        for point in points_of.values()
        if hasattr(point, "value")
    }
    assert plain == {
        "asyncpool.job.submitted": 40,
        "asyncpool.job.refused": 2,
        "asyncpool.job.items": 300,
        "asyncpool.job.timeouts": 3,
        "asyncpool.job.retries": 4,
        "asyncpool.job.takeovers": 5,
        "asyncpool.job.active": 1,
        "asyncpool.job.active.age": 2.0,
        "asyncpool.job.queue.length": 17,
        "asyncpool.job.queue.age": 0.25,
        "asyncpool.worker.wanted": 3,
        "asyncpool.worker.starts": 9,
        "asyncpool.worker.restarts": 6,
        "asyncpool.worker.cpu.time": 11.5,
        "process.memory.usage": 1 << 20,
        "asyncpool.shared_memory.usage": 4096,
        "asyncpool.event.dropped": 8,
        "asyncpool.node.lost": 1,
        "asyncpool.client.lost": 2,
        "asyncpool.client.refused": 3,
    }
    ended = {
        (dict(about)["asyncpool.job.via"], dict(about)["asyncpool.job.outcome"]): (
            point.value
        )
        for about, point in points["asyncpool.job.ended"].items()
    }
    assert ended == {("submit", "ok"): 10, ("submit", "raised"): 2, ("map", "ok"): 3}
    states = {
        dict(about)["asyncpool.worker.state"]: point.value
        for about, point in points["asyncpool.worker.count"].items()
    }
    assert states == {
        "vacant": 0,
        "starting": 0,
        "idle": 0,
        "busy": 1,
        "stopping": 0,
        "parked": 1,
    }
    crashes = {
        dict(about)["error.type"]: point.value
        for about, point in points["asyncpool.worker.crashes"].items()
    }
    assert {kind: count for kind, count in crashes.items() if count} == {
        "hung": 1,
        "out of memory": 6,
    }


def test_names_and_units_keep_the_conventions(figures: Figures) -> None:
    pool = told()
    watch(pool, figures)
    found = metrics(figures)
    assert len(found) == 24
    for metric in found:
        assert metric.name.startswith(("asyncpool.", "process."))
        assert metric.name == metric.name.lower()
        assert metric.unit
        assert metric.description
        assert metric.description.endswith(".")


def test_cpu_time_never_goes_back(figures: Figures) -> None:
    pool = told()
    watch(pool, figures)
    found = []
    for exited, slots in ((10.0, (SLOT,)), (10.0, ()), (11.6, ()), (11.6, (SLOT,))):
        pool.told = dataclasses.replace(STATS, exited_cpu=exited, slots=slots)
        found.append(figures.values("asyncpool.worker.cpu.time"))
    assert found == [11.5, 11.5, 11.6, 13.1]


def test_a_collection_reads_a_pool_once(figures: Figures) -> None:
    class Counting(Pool):
        reads = 0

        def stats(self) -> PoolStats:
            self.reads += 1
            return STATS

    pool = Counting(1)
    watch(pool, figures)
    before = pool.reads
    figures.points()
    figures.points()
    assert pool.reads == before + 2


def test_several_pools_are_told_apart(figures: Figures) -> None:
    first, second = told(), told(dataclasses.replace(STATS, queued=2), name="mail")
    watch(first, figures)
    watch(second, figures)
    length = "asyncpool.job.queue.length"
    assert figures.values(length, **{"pool.name": "images"}) == 17
    assert figures.values(length, **{"pool.name": "mail"}) == 2


def test_instrumenting_twice_is_an_error(figures: Figures) -> None:
    pool = told()
    watch(pool, figures)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - see below
        watch(pool, figures)
    assert str(caught.value) == (
        "pool images is already instrumented: uninstrument() it first"
    )
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - see below
        watch(told(), figures)
    assert str(caught.value) == (
        "another pool called images is instrumented: give one of them another name, "
        "or uninstrument() the other one first"
    )
    assert figures.values("asyncpool.job.queue.length") == 17


def test_uninstrument(figures: Figures) -> None:
    pool = told()
    with pytest.raises(ValueError, match=r"^pool images is not instrumented$"):
        uninstrument(pool)
    watch(pool, figures)
    uninstrument(pool)
    assert figures.points() == {}
    with pytest.raises(ValueError, match=r"^pool images is not instrumented$"):
        uninstrument(pool)
    watch(pool, figures)
    assert figures.values("asyncpool.job.queue.length") == 17


def test_what_is_refused(figures: Figures) -> None:
    pool = told()
    with pytest.raises(TypeError) as caught:
        instrument(pool.options(timeout=1))  # type: ignore[arg-type]
    assert str(caught.value) == "instrument() needs a Pool, not BoundPool"
    with pytest.raises(TypeError) as caught:
        instrument(pool, tracer_provider=figures.provider)  # type: ignore[arg-type]
    assert str(caught.value) == "instrument() needs a TracerProvider, not MeterProvider"
    with pytest.raises(TypeError) as caught:
        instrument(pool, meter_provider=NoOpTracerProvider())  # type: ignore[arg-type]
    assert str(caught.value) == (
        "instrument() needs a MeterProvider, not NoOpTracerProvider"
    )
    with pytest.raises(TypeError) as caught:
        uninstrument("images")  # type: ignore[arg-type]
    assert str(caught.value) == "uninstrument() needs a Pool, not str"
    with pytest.raises(ValueError) as wrong:  # noqa: PT011 - see below
        instrument(pool, spans=False, metrics=False)
    assert str(wrong.value) == "instrument() needs spans, or metrics, or both"
    with pytest.raises(TypeError) as caught:
        instrument(pool, max_traced="all")  # type: ignore[arg-type]
    assert str(caught.value) == "max_traced must be an int or None, not 'all'"
    with pytest.raises(ValueError) as wrong:  # noqa: PT011 - see below
        instrument(pool, max_traced=0)
    assert str(wrong.value) == "max_traced must be at least 1, not 0"
    watch(pool, figures)  # nothing of that has left a trace


def test_a_closed_pool_leaves_its_name_to_a_new_one(figures: Figures) -> None:
    closed = told()
    watch(closed, figures)
    closed.told = PoolStats(state=RunState.CLOSED, workers=1, submitted=7)
    assert figures.values("asyncpool.job.submitted") == 7
    pool = told()
    watch(pool, figures)
    assert figures.values("asyncpool.job.submitted") == 40


def test_a_pool_that_is_gone_drops_out(figures: Figures) -> None:
    pool = told()
    watch(pool, figures)
    del pool
    gc.collect()
    assert figures.points() == {}
    again = told()
    watch(again, figures)
    assert figures.values("asyncpool.job.queue.length") == 17


def test_only_the_api_is_needed() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from asyncpool import Pool\n"
        "from asyncpool.opentelemetry import instrument\n"
        "instrument(Pool(1))\n"
        "print(*(name for name in sys.modules if 'opentelemetry.semconv' in name))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout == "\n"


def test_without_the_extra_the_import_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import asyncpool.pool\n"
        "try:\n    import asyncpool.opentelemetry\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    told_text = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert told_text.stdout == (
        "asyncpool.opentelemetry needs opentelemetry-api, which is not installed: "
        "pip install 'asyncpool-supervised[opentelemetry]'\n"
    )
