"""What a scrape has, and the tools of a real Prometheus."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.patience import PATIENCE

__all__ = ["Figures", "Page", "exported", "names_in"]


class Figures:
    """The figures of a scrape, found by name and labels.

    Args:
        text: What was scraped, in Prometheus' text format.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        self._samples = [s for family in self.families for s in family.samples]

    @property
    def names(self) -> set[str]:
        """The names of all series."""
        return {sample.name for sample in self._samples}

    def labels(self, label: str) -> set[str]:
        """Return the values of a label, in all series."""
        return {s.labels[label] for s in self._samples if label in s.labels}

    def get(self, name: str, **labels: str) -> float:
        """Return the only figure of this name, with (at least) these labels."""
        [found] = self.all(name, **labels)
        return found

    def all(self, name: str, **labels: str) -> list[float]:
        """Return all figures of this name, with (at least) these labels."""
        return [
            sample.value
            for sample in self._samples
            if sample.name == f"asyncpool_{name}"
            and labels.items() <= sample.labels.items()
        ]


class Page:
    """A page of metrics, served by a thread of ``prometheus_client``."""

    def __init__(self, port: int) -> None:
        self.port = port

    def scrape(self) -> Figures:
        """Return what a GET of the page shows; it blocks."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, PATIENCE)
        try:
            connection.request("GET", "/metrics")
            response = connection.getresponse()
            assert response.status == 200
            return Figures(response.read().decode())
        finally:
            connection.close()


@contextmanager
def exported(registry: CollectorRegistry) -> Iterator[Page]:
    """Serve the metrics of *registry*."""
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield Page(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


def names_in(expression: str) -> set[str]:
    """Return the series that a text in PromQL names."""
    return set(re.findall(r"\basyncpool_\w+", expression))
