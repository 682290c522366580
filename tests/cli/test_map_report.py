"""``asyncpool map --report``: a page with the figures of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from asyncpool._cli.page.report import report_page
from tests.helpers.command import Done, numbers, run_command, write_module

WORK = """
    import os

    def double(n):
        if n == 7:
            raise ValueError("seven")
        if n == 8:
            os.abort()
        return n * 2
"""


def run(folder: Path, *args: str) -> Done:
    write_module(folder, WORK)
    numbers(folder, 50)
    command = ("map", "work:double", "in.jsonl", "-o", "out.jsonl", "-w", "2")
    return run_command(folder, *command, *args)


def shown(path: Path) -> Any:
    """Return what a report shows."""
    [text] = re.findall(r'id="report">(.*?)</script>', path.read_text())
    told = json.loads(text)
    assert told["title"] == "work:double"
    return told["shown"]


def test_a_run_leaves_a_report(tmp_path: Path) -> None:
    done = run(tmp_path, "--report", "report.html")
    assert done.code == 1, done.err
    told = shown(tmp_path / "report.html")
    [row] = told["functions"]
    assert (row["name"], row["jobs"], row["failed"]) == ("work:double", 50, 2)
    assert row["failures"] == {"raised": 1, "crashed": 1}
    assert [(each["signal"], each["function"]) for each in told["crashes"]] == [
        ("SIGABRT", "work:double")
    ]
    assert {told["names"][job[1]] for job in told["jobs"]} == {"work:double"}
    assert len(told["jobs"]) == 50
    assert {job[7] for job in told["jobs"]} == {"ok", "raised", "crashed"}
    assert told["whole"] is True
    assert {path.name for path in tmp_path.iterdir()} >= {"report.html", "out.jsonl"}
    assert not list(tmp_path.glob(".report*"))


def test_an_older_report_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_page("older", {}))
    assert run(tmp_path, "--report", "report.html").code == 1
    assert shown(path)["functions"]


def test_a_file_that_is_no_report_stays(tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    path.write_text("<!doctype html>\n<p>mine\n")
    done = run(tmp_path, "--report", "index.html")
    assert done.code == 2
    assert done.err.endswith(
        "Error: index.html is no report of a run, and this run would write over it: name another "
        "one by --report, or move it away.\n"
    )
    assert path.read_text() == "<!doctype html>\n<p>mine\n"
    assert not (tmp_path / "out.jsonl").exists()


def test_a_report_that_cannot_be_written_is_told_of_and_the_results_stay(
    tmp_path: Path,
) -> None:
    if Path("/dev/full").exists():
        done = run(tmp_path, "--report", "/dev/full")
        assert "cannot write the report /dev/full: No space left on device" in done.err
        assert done.code == 3
        assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 48


def test_a_report_is_no_other_file_of_the_run(tmp_path: Path) -> None:
    for path, text in (
        ("nowhere/report.html", "There is no folder"),
        ("out.jsonl", "--report and --output are the same file"),
        ("in.jsonl", "--report and INPUT are the same file"),
    ):
        done = run(tmp_path, "--report", path)
        assert done.code == 2
        assert text in done.err
