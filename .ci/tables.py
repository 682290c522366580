"""Write the tables of metrics into the documents, from the one table that the code has.

    usage: tables.py [--check]

A table stands between two comments, the first of which names it.  With ``--check`` nothing is
written, and a table that is not the code's is an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from asyncpool._observe.metrics import (  # noqa: E402 - of this checkout
    CLUSTER_METRICS,
    NODE_METRICS,
    POOL_METRICS,
    Metric,
)


def for_prometheus(metrics: Iterable[Metric]) -> str:
    """Return the table for Prometheus."""
    rows = ["| metric | what it is |", "|---|---|"]
    for it in metrics:
        name = it.name + "_total" * (it.kind == "counter")
        labels = f"{{{','.join(it.labels)}}}" * bool(it.labels)
        rows += [f"| `{name}{labels}` | {it.meaning[:-1]} |"] * bool(it.name)
    return "\n".join(rows)


def for_opentelemetry(metrics: Iterable[Metric]) -> str:
    """Return the table for OpenTelemetry."""
    rows = [
        "| metric | instrument, unit | attributes | what it is |",
        "|---|---|---|---|",
    ]
    for it in metrics:
        kind = it.kind.replace("up_down", "up-down").replace("_", " ")
        unit = f"`{it.unit}`" if "{" in it.unit else it.unit
        about = ", ".join(f"`{each}`" for each in it.attributes)
        row = f"| `{it.otel}` | {kind}, {unit} | {about} | {it.meaning[:-1]} |"
        rows += [row.replace("|  |", "| |")] * bool(it.otel)
    return "\n".join(rows)


TABLES = {
    "pool": for_prometheus(POOL_METRICS),
    "nodes": for_prometheus(NODE_METRICS),
    "cluster": for_prometheus(CLUSTER_METRICS),
    "opentelemetry": for_opentelemetry(POOL_METRICS),
}
PLACE = re.compile(r"(?<=<!--)(?!end)(\w+)(-->\n\n)(.*?)(?=\n\n<!--end-->)", re.DOTALL)


def main(option: str = "") -> int:
    """Write the tables, or check them."""
    missing, wrong = set(TABLES), []

    def table(found: re.Match[str]) -> str:
        name, between, _ = found.groups()
        missing.discard(name)
        return f"{name}{between}{TABLES[name]}"

    for page in ("operating", "opentelemetry", "cluster"):
        path = ROOT / "docs" / f"{page}.md"
        text = path.read_text()
        new = PLACE.sub(table, text)
        if new != text and option == "--check":
            wrong.append(path.name)
        elif new != text:
            path.write_text(new)
    for each in (*sorted(missing), *wrong):
        print(f"{each}: not the table of asyncpool/_observe/metrics.py")
    return bool(missing or wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
