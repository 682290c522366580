"""The dashboard and the alerts that docs/operating.md recommends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric

from asyncpool import Cluster, Pool
from asyncpool.prometheus import register
from tests.helpers import serves
from tests.helpers.programs import find_program
from tests.helpers.scraping import names_in
from tests.helpers.scripts import ROOT

MONITORING = ROOT / "docs" / "monitoring"
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}


def metrics() -> list[Metric]:
    """Return what is exported of pools and clusters."""
    registry = CollectorRegistry()
    register(Pool(1), registry)
    register(Cluster(serves.talk), registry)
    return list(registry.collect())


def series() -> set[str]:
    """Return the names of the series that a collector exports."""
    return {each.name + suffix for each in metrics() for suffix in SUFFIXES[each.type]}


def expressions() -> list[str]:
    """Return what the panels of the dashboard ask for."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    return [
        target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())  # a row has none
    ]


def rules() -> str:
    """Return the rules of the alerts without what is around the expressions."""
    return (MONITORING / "alerts.yml").read_text()


def test_the_dashboard_and_the_alerts_name_series_that_there_are() -> None:
    names = series()
    asked = {expression: names_in(expression) for expression in expressions()}
    assert all(asked.values())
    assert {name for found in asked.values() for name in found} <= names
    assert names_in(rules()) <= names


def test_each_metric_has_a_panel() -> None:
    shown = names_in(" ".join(expressions()))
    hidden = [
        metric.name
        for metric in metrics()
        if not any(name.startswith(metric.name) for name in shown)
    ]
    assert hidden == []


def test_the_alerts_tell_what_they_should() -> None:
    """Each one, when it should and when it should not; see alerts_test.yml."""
    promtool = find_program("promtool")
    checked = subprocess.run(
        [promtool, "test", "rules", str(Path(__file__).parent / "alerts_test.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_tables_of_the_pages_are_those_of_the_code() -> None:
    """``.ci/tables.py`` writes them anew."""
    command = [sys.executable, ".ci/tables.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, check=False)
    assert done.returncode == 0
