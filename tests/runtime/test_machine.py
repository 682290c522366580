"""What a machine tells of its limits and processes, and what workers in a sandbox get of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from asyncpool import Pool, Sandbox
from asyncpool._core.options import WorkerLimits
from asyncpool._engine import machine
from asyncpool._engine.loop import Threads
from asyncpool._sandbox import confinement
from asyncpool._sandbox.confinement import (
    Confinement,
    Place,
    delegated_folder,
    remove_cgroup,
    remove_tree,
    this_machine,
)
from asyncpool._sandbox.plan import SandboxPlan
from asyncpool.errors import UnsupportedPlatformError
from tests.helpers.loops import BOTH_LOOPS

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


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "cpus"),
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
        # Version 1.
        ({"cpu/a/cpu.cfs_quota_us": "-1\n"}, 8),
        ({"cpu/a/cpu.cfs_quota_us": "250000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "100000\n"}, 1),
        ({"memory/a/cpu.cfs_quota_us": "1\n"}, 8),
    ],
)
def test_a_quota_of_cgroups(files: dict[str, str], cpus: int, groups: Path) -> None:
    periods = [name.replace("quota", "period") for name in files if "quota" in name]
    put(groups, {"self": LEGACY if periods else UNIFIED, **files})
    put(groups, dict.fromkeys(periods, "100000\n"))
    assert machine.usable_cpus() == cpus


def test_without_a_quota_affinity_counts_or_all_cpus(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert Pool().stats().workers == machine.usable_cpus() == 2
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.usable_cpus() == 1


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({"a/b/memory.max": "max\n"}, None),
        ({"a/b/memory.max": "max\n", "a/memory.max": "4096\n"}, 4096),
        ({"a/b/memory.max": "8192\n", "a/memory.max": "4096\n"}, 4096),
        ({"memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({"memory/a/memory.limit_in_bytes": "4096\n"}, 4096),
    ],
)
def test_a_limit_of_memory(
    files: dict[str, str], found: int | None, groups: Path
) -> None:
    legacy = any("limit_in_bytes" in name for name in files)
    put(groups, {"self": LEGACY if legacy else UNIFIED, **files})
    assert machine.memory_limit() == found


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
    assert machine.status_of_zombie(os.getpid()) is None
    with subprocess.Popen(["/bin/sh", "-c", script]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert machine.status_of_zombie(child.pid) == status
        child.wait()
        assert machine.status_of_zombie(child.pid) is None


# Cgroups of workers.


def make(folder: Path, controllers: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.subtree_control").write_text(controllers)
    (folder / "cgroup.procs").touch()
    return folder


def test_workers_go_beside_the_service_or_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    delegated = make(tmp_path / "delegated", "io cpu memory pids")
    leaf = make(delegated / "service", "")
    assert delegated_folder(leaf) == delegated_folder(delegated) == delegated
    make(leaf, "pids")
    assert delegated_folder(leaf) == leaf
    # Without controllers nothing is delegated.
    other = make(make(tmp_path / "outer", "io hugetlb") / "service", "")
    assert delegated_folder(other) is None
    assert delegated_folder(tmp_path / "no" / "such") is None
    for folder, limits in ((delegated, ("memory", "pids", "cpu")), (None, ())):
        monkeypatch.setattr(confinement, "_own_folder", lambda found=folder: found)
        assert set(this_machine().limits) == set(limits)


def test_root_takes_only_what_is_marked_as_delegated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "slice", "memory")
    marks: dict[tuple[Path, str], bytes] = {}

    def mark(path: Path, name: str) -> bytes:
        try:
            return marks[path, name]
        except KeyError:
            raise OSError from None

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getxattr", mark, raising=False)
    assert delegated_folder(folder) is None
    marks[folder, "user.delegate"] = b"1"
    assert delegated_folder(folder) == folder


def test_a_worker_has_its_limits() -> None:
    plan, every = SandboxPlan(memory=1 << 30, tasks=(300, 0)), ("memory", "pids", "cpu")
    limits = confinement._cgroup_limits
    assert limits(plan, 0.5, every) == {
        "memory.max": "1073741824",
        "memory.oom.group": "1",
        "pids.max": "300",
        "cpu.max": "50000 100000",
    }
    assert limits(plan, 0.0001, ("cpu",)) == {"cpu.max": "1000 100000"}
    assert limits(SandboxPlan(), None, every) == {}


def test_a_worker_leaves_no_cgroup(tmp_path: Path) -> None:
    place = Place("", tmp_path / "worker")
    assert not place.lacked_memory()
    folder = make(tmp_path / "worker", "")
    for killed in (1, 0):
        events = f"low 0\nhigh 0\nmax 12\noom {killed}\noom_kill {killed}\n"
        (folder / "memory.events").write_text(events)
        assert place.lacked_memory() is bool(killed)
    assert not remove_cgroup(folder), "here its files are real ones"
    assert (folder / "cgroup.kill").read_text() == "1"
    shutil.rmtree(folder)
    assert remove_cgroup(folder)


# Private folders.


@pytest.mark.parametrize(
    "user",
    [
        None,
        pytest.param(
            (65534, 65534),
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives them"),
        ),
    ],
)
@BOTH_LOOPS
async def test_only_its_owner_enters_a_folder_and_it_goes_with_the_rest(
    user: tuple[int, int] | None,
) -> None:
    mine = Confinement(Sandbox(strict=False), WorkerLimits())
    mine.plan = SandboxPlan(user=user)
    place = mine.open()
    one, other = Path(place.folder), Path(mine.open().folder)
    assert one.parent == other.parent
    assert one.stat().st_mode & 0o777 == 0o700
    # Another user cannot list those of others.
    assert one.parent.stat().st_mode & 0o777 == (0o711 if user else 0o700)
    assert one.stat().st_uid == (user[0] if user else os.geteuid())
    mine.release(place, Threads(asyncio.get_running_loop()))
    assert (one.exists(), other.exists()) == (False, True)
    for _ in range(2):  # again, which does no harm
        await mine.close()
        assert not other.parent.exists()


def test_a_tree_deeper_than_any_stack_is_removed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    fd = os.open(tmp_path / "tree", os.O_RDONLY)
    for level in range(3000):
        os.close(os.open(f"file{level}", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.mkdir("deeper", dir_fd=fd)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    remove_tree(str(tmp_path), "tree")
    assert list(tmp_path.iterdir()) == []


def test_no_link_is_followed_and_closed_folders_are_opened(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    kept.chmod(0o500)
    tree = tmp_path / "tree"
    (tree / "closed" / "inner").mkdir(parents=True)
    (tree / "closed" / "link").symlink_to(kept)
    (tree / "link").symlink_to(kept)
    (tree / "closed").chmod(0)
    remove_tree(str(tmp_path), "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.stat().st_mode & 0o777 == 0o500
    assert (kept / "file").read_text() == "x"
    kept.chmod(0o700)
