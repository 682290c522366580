"""Cgroups of workers, in folders that look like those of the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asyncpool._runtime.sandbox import cgroups
from asyncpool._runtime.sandbox.cgroups import (
    WorkerCgroup,
    delegated_folder,
    delegated_limits,
    limit_texts,
)


def make(folder: Path, controllers: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.subtree_control").write_text(controllers)
    (folder / "cgroup.procs").touch()
    return folder


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("ordinary")
def test_workers_go_beside_the_service_or_below_it(tmp_path: Path) -> None:
    delegated = make(tmp_path / "delegated", "cpu memory pids")
    leaf = make(delegated / "service", "")
    assert delegated_folder(leaf) == delegated
    assert delegated_folder(delegated) == delegated
    make(leaf, "pids")
    assert delegated_folder(leaf) == leaf


@pytest.mark.usefixtures("ordinary")
def test_without_controllers_nothing_is_delegated(tmp_path: Path) -> None:
    leaf = make(make(tmp_path / "outer", "io hugetlb") / "service", "")
    assert delegated_folder(leaf) is None
    assert delegated_folder(tmp_path / "no" / "such") is None


def test_root_takes_only_what_is_marked_as_delegated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "slice", "memory")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    marks: dict[str, bytes] = {}

    def mark(path: Path, name: str) -> bytes:
        if path == folder and name in marks:
            return marks[name]
        raise OSError

    monkeypatch.setattr(os, "getxattr", mark, raising=False)
    assert delegated_folder(folder) is None
    marks["user.delegate"] = b"1"
    assert delegated_folder(folder) == folder


@pytest.mark.usefixtures("ordinary")
def test_the_limits_that_can_be_had_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "delegated", "pids io memory")
    monkeypatch.setattr(cgroups, "_own_folder", lambda: folder)
    assert delegated_limits() == ("memory", "pids")
    monkeypatch.setattr(cgroups, "_own_folder", lambda: None)
    assert delegated_limits() == ()


def test_a_worker_has_its_limits_and_leaves_nothing(tmp_path: Path) -> None:
    cgroup = WorkerCgroup(tmp_path / "worker")
    cgroup.limit({"memory": 1 << 30, "pids": 300, "cpu": 0.5})
    found = {path.name: path.read_text() for path in cgroup.folder.iterdir()}
    assert found == {
        "memory.max": "1073741824",
        "memory.oom.group": "1",
        "pids.max": "300",
        "cpu.max": "50000 100000",
    }
    for name in found:
        (cgroup.folder / name).unlink()  # the kernel's files do not keep a folder
    assert not cgroup.remove(), "here its file to kill processes is a real one"
    assert (cgroup.folder / "cgroup.kill").read_text() == "1"
    (cgroup.folder / "cgroup.kill").unlink()
    cgroup.folder.rmdir()
    assert cgroup.remove()


def test_limits_that_nobody_asked_for_are_not_set() -> None:
    assert limit_texts({}) == {}
    assert limit_texts({"cpu": 0.0001}) == {"cpu.max": "1000 100000"}


@pytest.mark.parametrize(
    ("events", "lacked"),
    [
        ("low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\n", True),
        ("low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\n", False),
        (None, False),
    ],
)
def test_a_death_for_lack_of_memory_is_known(
    tmp_path: Path,
    events: str | None,
    lacked: bool,  # noqa: FBT001 - a column
) -> None:
    cgroup = WorkerCgroup(tmp_path / "worker")
    if events is not None:
        (cgroup.folder / "memory.events").write_text(events)
    assert cgroup.lacked_memory() is lacked
