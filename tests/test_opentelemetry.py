"""What OpenTelemetry collects of the figures of a pool, and what instrument() refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Metric
from opentelemetry.trace import NoOpTracerProvider

from asyncpool import Pool, PoolStats
from asyncpool.opentelemetry import instrument, uninstrument
from tests.helpers.spans import Figures
from tests.helpers.told_pool import STATS, told


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

    def by(name: str, *keys: str) -> dict[tuple[str, ...], float]:
        return {
            tuple(dict(about)[key] for key in keys): point.value
            for about, point in points[name].items()
        }

    ended = by("asyncpool.job.ended", "asyncpool.job.via", "asyncpool.job.outcome")
    assert ended == {("submit", "ok"): 10, ("submit", "raised"): 2, ("map", "ok"): 3}
    states = by("asyncpool.worker.count", "asyncpool.worker.state")
    assert states.keys() >= {("vacant",), ("starting",), ("idle",), ("stopping",)}
    assert {it: n for it, n in states.items() if n} == {("busy",): 1, ("parked",): 1}
    crashes = by("asyncpool.worker.crashes", "error.type")
    assert {it: n for it, n in crashes.items() if n} == {
        ("hung",): 1,
        ("out of memory",): 6,
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


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (
            {"tracer_provider": MeterProvider()},
            TypeError,
            "instrument() needs a TracerProvider, not MeterProvider",
        ),
        (
            {"meter_provider": NoOpTracerProvider()},
            TypeError,
            "instrument() needs a MeterProvider, not NoOpTracerProvider",
        ),
        (
            {"spans": False, "metrics": False},
            ValueError,
            "instrument() needs spans, or metrics, or both",
        ),
        (
            {"max_traced": "all"},
            TypeError,
            "max_traced must be an int or None, not 'all'",
        ),
        ({"max_traced": 0}, ValueError, "max_traced must be at least 1, not 0"),
    ],
)
def test_what_is_refused(
    options: dict[str, Any], kind: type[Exception], text: str, figures: Figures
) -> None:
    pool = told()
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        instrument(pool, **options)
    watch(pool, figures)  # nothing of that has left a trace


def test_what_is_no_pool_is_refused() -> None:
    bound: Any = told().options(timeout=1)
    with pytest.raises(
        TypeError, match=r"^instrument\(\) needs a Pool, not BoundPool$"
    ):
        instrument(bound)
    with pytest.raises(TypeError, match=r"^uninstrument\(\) needs a Pool, not str$"):
        uninstrument("images")  # type: ignore[arg-type]


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
