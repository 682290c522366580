"""What a metric consists of, be it one of pools or one of clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from asyncpool._observe.readings import BOUNDS, Reading
from asyncpool.stats import Histogram

S = TypeVar("S")

Figure = float | Histogram
Figures = Iterable[tuple[tuple[str, ...], Figure]]


@dataclass(frozen=True, slots=True)
class ExportedMetric(Generic[S]):
    """One metric.

    Attributes:
        kind: The type of it in ``prometheus_client``.
        name: Its name; that of a counter gets ``_total`` behind it.
        meaning: Its help text.
        labels: Its labels: the first one has the name of the pool or cluster.
        read: Returns the figure for each combination of values of the others.
    """

    kind: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
    name: str
    meaning: str
    labels: tuple[str, ...]
    read: Callable[[Reading[S]], Figures]

    def family(self, readings: Iterable[tuple[str, Reading[S]]] = ()) -> Metric:
        """Return the metric with the figures of those whose names these are."""
        family = self.kind(self.name, self.meaning, labels=self.labels)
        for name, reading in readings:
            for values, figure in self.read(reading):
                if isinstance(family, HistogramMetricFamily):
                    assert isinstance(figure, Histogram)
                    family.add_metric((name, *values), _buckets(figure), figure.total)
                else:
                    assert not isinstance(figure, Histogram)
                    family.add_metric((name, *values), figure)
        return family


class MetricMaker(Generic[S]):
    """Makes the metrics of pools, or those of clusters.

    Args:
        prefix: How their names begin.
        label: Their first label, which has the name of the pool or cluster.
    """

    def __init__(self, prefix: str, label: str) -> None:
        self._prefix = prefix
        self._label = label

    def labelled(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily],
        name: str,
        meaning: str,
        labels: tuple[str, ...],
        read: Callable[[Reading[S]], Figures],
    ) -> ExportedMetric[S]:
        """Return a metric with more labels; see :class:`ExportedMetric`."""
        return ExportedMetric(
            kind, f"{self._prefix}_{name}", meaning, (self._label, *labels), read
        )

    def counter(
        self, name: str, meaning: str, read: Callable[[S], float]
    ) -> ExportedMetric[S]:
        """Return a counter that *read* finds in the figures."""
        return self._single(CounterMetricFamily, name, meaning, read)

    def gauge(
        self, name: str, meaning: str, read: Callable[[S], float]
    ) -> ExportedMetric[S]:
        """Return a gauge that *read* finds in the figures."""
        return self._single(GaugeMetricFamily, name, meaning, read)

    def histogram(
        self, name: str, meaning: str, read: Callable[[S], Histogram]
    ) -> ExportedMetric[S]:
        """Return a histogram that *read* finds in the figures."""
        return self._single(HistogramMetricFamily, name, meaning, read)

    def _single(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily],
        name: str,
        meaning: str,
        read: Callable[[S], Figure],
    ) -> ExportedMetric[S]:
        return self.labelled(kind, name, meaning, (), lambda at: [((), read(at.stats))])


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return each bound with the number of durations below it, and last all durations."""
    pairs = list(zip(histogram.bounds, histogram.counts, strict=True))
    buckets: list[tuple[str, float]] = [
        (str(most), sum(count for bound, count in pairs if bound <= most))
        for most in BOUNDS
    ]
    return [*buckets, ("+Inf", histogram.count)]
