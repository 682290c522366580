"""``asyncpool serve --trace``: a file that shows how workers lived, also of a killed master."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.helpers.command import run_command
from tests.helpers.serving import Server, until, write_app
from tests.helpers.traces import read_trace

ONE = ("app:app", "--bind", "127.0.0.1:0", "--workers", "1", "--trace", "run.json")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_app(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_trace_shows_requests_and_reloads(folder: Path) -> None:
    path = folder / "run.json"
    with Server(folder, *ONE) as server:
        server.whole()
        server.get()
        assert server.command("reload").code == 0
        until(lambda: '"requests a second"' in path.read_text(), "requests are counted")
        assert server.end(signal.SIGTERM) == 0
    traced = read_trace(path)
    assert traced.whole
    names = [each.name for each in traced.slices]
    assert names.count("serving") == 2
    assert names.count("reload") == 1
    assert "open connections" in traced.counters


def test_the_trace_of_a_killed_master_can_be_read(folder: Path) -> None:
    path = folder / "run.json"
    with Server(folder, *ONE) as server:
        server.whole()
        until(lambda: '"serving"' in path.read_text(), "the worker serves")
        server.kill()
    traced = read_trace(path, killed=True)
    assert not traced.whole
    [serving] = [each for each in traced.slices if each.name == "serving"]
    assert serving.end is None


def test_a_file_that_cannot_be_written_is_a_clear_refusal(folder: Path) -> None:
    (folder / "run.json").write_text("mine\n")
    done = run_command(folder, "serve", *ONE)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"asyncpool: {folder}/run.json: there is a file that is no trace: cluster app "
        "cannot write its trace; name another file by trace, or leave trace out\n"
    ) or done.err.startswith("asyncpool: run.json: there is a file that is no trace")
