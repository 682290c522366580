"""How many CPUs a pool may use, and where no pool can run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from asyncpool import Pool, UnsupportedPlatformError
from asyncpool._runtime.base import machine

UNIFIED = "0::/a/b\n"
LEGACY = "12:cpu,cpuacct:/a\n3:memory:/a\n1:name=systemd:/\n"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the cgroups read from a folder, and eight CPUs by affinity."""
    read = machine._read

    def read_there(path: Path) -> str:
        inside = tmp_path / "self" if path == Path("/proc/self/cgroup") else path
        return read(inside)

    monkeypatch.setattr(machine, "_read", read_there)
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("limits", "cpus"),
    [
        ({}, 8),
        ({"a/b/cpu.max": "max 100000\n"}, 8),
        ({"a/b/cpu.max": "200000 100000\n"}, 2),
        ({"a/b/cpu.max": "150000 100000\n"}, 2),
        ({"a/b/cpu.max": "10000 100000\n"}, 1),
        ({"a/b/cpu.max": "9900000 100000\n"}, 8),
        # The tightest on the way up counts.
        ({"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        ({"cpu.max": "300000 100000\n"}, 3),
        ({"a/b/cpu.max": "rubbish"}, 8),
        ({"a/b/cpu.max": "100000 0\n"}, 8),
    ],
)
def test_a_quota_of_cgroup_v2(limits: dict[str, str], cpus: int, groups: Path) -> None:
    put(groups / "self", UNIFIED)
    for name, text in limits.items():
        put(groups / name, text)
    assert machine.usable_cpus() == cpus


@pytest.mark.parametrize(
    ("folder", "quota", "cpus"),
    [("cpu/a", -1, 8), ("cpu/a", 250_000, 3), ("cpu", 100_000, 1), ("memory/a", 1, 8)],
)
def test_a_quota_of_cgroup_v1(folder: str, quota: int, cpus: int, groups: Path) -> None:
    put(groups / "self", LEGACY)
    put(groups / folder / "cpu.cfs_quota_us", f"{quota}\n")
    put(groups / folder / "cpu.cfs_period_us", "100000\n")
    assert machine.usable_cpus() == cpus


def test_affinity_counts_without_a_quota(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert machine.usable_cpus() == 2
    assert Pool().stats().workers == 2


def test_without_affinity_all_cpus_count(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.usable_cpus() == 1


@pytest.mark.parametrize(
    ("target", "name", "text"),
    [(socket, "AF_UNIX", "Unix sockets"), (socket, "SCM_RIGHTS", "descriptors")],
)
def test_a_platform_without_the_means_is_refused_at_construction(
    target: object, name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(target, name)
    with pytest.raises(UnsupportedPlatformError, match=text):
        Pool(1)


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"/proc/vmstat": "pgfault 5\noom_kill 17\n"}, 17),
        (
            {
                "/proc/self/cgroup": "4:memory:/deep/er\n0::/\n",
                "/cg/memory/deep/er/memory.oom_control": "under_oom 0\noom_kill 3\n",
                "/cg/memory/memory.oom_control": "under_oom 0\noom_kill 9\n",
                "/proc/vmstat": "oom_kill 17\n",
            },
            3,
        ),
        (
            {
                "/proc/self/cgroup": "0::/of/the/host\n",
                "/cg/memory.events": "low 0\noom 2\noom_kill 1\noom_group_kill 5\n",
                "/proc/vmstat": "oom_kill 17\n",
            },
            1,
        ),
        # Nobody counts.
        ({}, None),
    ],
    ids=["machine", "version 1", "version 2", "nowhere"],
)
def test_the_nearest_count_of_kills_is_read(
    files: dict[str, str], count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_CGROUPS", Path("/cg"))
    monkeypatch.setattr(machine, "_read", lambda path: files.get(str(path), ""))
    kills = machine.OomKills()
    assert kills.count() == count
    files.clear()
    assert kills.count() == (None if count is None else 0)


@pytest.mark.parametrize(
    ("stat", "stopped"),
    [
        ("17 (python) T 1 17", True),
        ("17 (a (T) b) t 1 17", True),
        ("17 (a) T (b) S 1 17", False),
        ("17 (python) R 1 17", False),
        ("", False),
    ],
)
def test_a_stopped_process_is_told_by_its_state(
    stat: str,
    stopped: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "_read", lambda _: stat)
    assert machine.is_stopped(17) is stopped


@pytest.mark.skipif(sys.platform != "linux", reason="it is in /proc")
@pytest.mark.parametrize(
    ("script", "status"), [("exit 3", 3), ("kill -9 $$", -9), ("exit 0", None)]
)
def test_the_status_of_a_process_that_nobody_has_asked_for_is_there(
    script: str, status: int | None
) -> None:
    with subprocess.Popen(["/bin/sh", "-c", script]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert machine.status_of_zombie(child.pid) == status
        child.wait()
        assert machine.status_of_zombie(child.pid) is None


def test_a_process_that_runs_has_no_status() -> None:
    assert machine.status_of_zombie(os.getpid()) is None


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({}, None),
        ({"a/b/memory.max": "max\n"}, None),
        ({"a/b/memory.max": "max\n", "a/memory.max": "4096\n"}, 4096),
        ({"a/b/memory.max": "8192\n", "a/memory.max": "4096\n"}, 4096),
    ],
)
def test_a_limit_of_memory_of_cgroup_v2(
    limits: dict[str, str], found: int | None, groups: Path
) -> None:
    put(groups / "self", UNIFIED)
    for name, text in limits.items():
        put(groups / name, text)
    assert machine.memory_limit() == found


@pytest.mark.parametrize(
    ("text", "found"), [("9223372036854771712\n", None), ("4096\n", 4096)]
)
def test_a_limit_of_memory_of_cgroup_v1(
    text: str, found: int | None, groups: Path
) -> None:
    put(groups / "self", LEGACY)
    put(groups / "memory" / "a" / "memory.limit_in_bytes", text)
    assert machine.memory_limit() == found
