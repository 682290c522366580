"""Workers in a sandbox: what they have, what they are refused, and that they are workers still."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Literal

import pytest

from asyncpool import Job, Pool, Sandbox, heartbeat
from asyncpool.errors import JobTimeoutError, WorkerCrashedError
from tests.helpers.inside import give_workers_cgroups
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import look_again, patience
from tests.helpers.sandboxes import needs_sandbox

pytestmark = [pytest.mark.asyncio, needs_sandbox]

ME = "tests.e2e.test_confinement"
PARSER = Sandbox.parser()


def listen_unbound() -> int:
    with socket.socket() as sock:
        sock.listen()  # at a free port of all addresses
        return int(sock.getsockname()[1])


def read(path: str) -> str:
    return Path(path).read_text()


def write(path: str) -> str:
    Path(path).write_text("x")
    return str(Path(path).absolute())


def environment() -> tuple[dict[str, str], str]:
    return dict(os.environ), str(Path.cwd())


def connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def send(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", ("127.0.0.1", port))


def take(size: int) -> int:
    return len(bytes(size))


def compute() -> None:
    while True:
        pass


def wait() -> None:
    heartbeat("waits")
    threading.Event().wait()


def shout() -> None:
    logging.getLogger("shop").warning("from a sandbox")


def crash() -> None:
    os.write(2, b"the last words\n")
    os._exit(3)


def programs_may_have() -> int:
    """Return how many capabilities a program of root's would get."""
    return sum(ctypes.CDLL(None).prctl(23, number) == 1 for number in range(64))


def import_it(name: str) -> str:
    return str(__import__(name))


def in_a_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(try_to_read("/etc/passwd")))
    thread.start()
    thread.join()
    return found[0]


def try_to_read(path: str) -> int:
    try:
        read(path)
    except OSError as error:
        return error.errno or 0
    return 0


def fill_deeply() -> str:
    """Leave what is hard to remove: a deep tree, links, folders that nobody may enter."""
    here = Path.cwd()
    (here / "link").symlink_to("/etc")
    (here / "closed").mkdir(0)
    for _ in range(1500):
        Path("deeper").mkdir()
        os.chdir("deeper")
    Path("file").touch()
    return str(here)


async def pause() -> str:
    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


@BOTH_LOOPS
async def test_a_parser_has_its_arguments_and_a_private_folder() -> None:
    async with Pool(1, preload=[ME], sandbox=PARSER) as pool:
        assert await pool.submit(len, bytes(4 << 20)) == 4 << 20
        assert len(await pool.submit(bytes, 4 << 20)) == 4 << 20
        variables, folder = await pool.submit(environment)
        assert variables == {"HOME": folder, "TMPDIR": folder}
        assert await pool.submit(tempfile.gettempdir) == folder
        assert await pool.submit(write, "here") == f"{folder}/here"
        for path in ("/etc/passwd", __file__, "/proc/self/environ", sys.executable):
            with pytest.raises(PermissionError):
                await pool.submit(read, path)
        assert await pool.submit(in_a_thread) == errno.EACCES
        soft, hard = await pool.submit(resource.getrlimit, resource.RLIMIT_NOFILE)
        assert 0 < soft <= hard <= 1024
        with pytest.raises(ValueError, match="not allowed to raise maximum limit"):
            await pool.submit(
                resource.setrlimit, resource.RLIMIT_NOFILE, (hard, hard + 1)
            )
    assert not Path(folder).parent.exists(), "it goes with the pool"


async def test_a_fresh_interpreter_is_in_the_same_sandbox() -> None:
    options = {"PYTHONDONTWRITEBYTECODE": "1"}
    sandbox = Sandbox(imports=False, env=options)
    async with Pool(1, preload=[ME], launcher="spawn", sandbox=sandbox) as pool:
        variables, folder = await pool.submit(environment)
        assert variables == {"HOME": folder, "TMPDIR": folder, **options}
        for call in (read, write):
            with pytest.raises(PermissionError):
                await pool.submit(call, "/etc/passwd")
        with pytest.raises(PermissionError):
            await pool.submit(subprocess.call, ["/bin/true"])


async def test_workers_in_a_sandbox_do_all_that_workers_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Pool(1, preload=[ME], sandbox=PARSER, max_unavailable=1) as pool:
        assert [item async for item in pool.stream(range, 3)] == [0, 1, 2]
        assert [item async for item in pool.map(abs, [-1, -2])] == [1, 2]
        assert await pool.broadcast(abs, -3) == {0: 3}
        assert await pool.submit(pause) == "asyncio"
        await pool.submit(shout)
        job = pool.options(timeout=0.3, cancel_grace=0.1).submit(wait)
        async for details in job.progress():
            assert details == "waits"
            break
        assert "wait" in await job.stack()
        with pytest.raises(JobTimeoutError):
            await job
        profile = await pool.profile(0.05)
        assert profile is not None
        with pytest.raises(WorkerCrashedError) as caught:
            await pool.submit(crash)
        assert "the last words" in str(caught.value)
        assert (await pool.roll()).ok
        async with pool.worker() as worker:
            assert await worker.submit(abs, -4) == 4
        assert await pool.submit(abs, -5) == 5
    assert "from a sandbox" in caplog.messages


@pytest.mark.parametrize("codec", ["json", "msgspec"])
async def test_data_comes_out_of_a_sandbox(codec: Literal["json", "msgspec"]) -> None:
    async with Pool(1, codec=codec, preload=[ME], sandbox=PARSER) as pool:
        assert await pool.submit(abs, -1) == 1
        assert await pool.submit(try_to_read, "/etc/passwd") == errno.EACCES


async def test_async_jobs_run_at_once_in_the_loop_that_was_asked_for() -> None:
    pytest.importorskip("uvloop")
    async with Pool(
        1, preload=[ME], concurrency=4, worker_loop="uvloop", sandbox=PARSER
    ) as pool:
        jobs = [pool.submit(pause) for _ in range(4)]
        assert await asyncio.gather(*jobs) == ["uvloop"] * 4


async def test_files_are_read_and_written_where_that_is_allowed(tmp_path: Path) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    given.write_text("it")
    out.mkdir()
    (out / "inner").mkdir()
    sandbox = Sandbox(read=[given], write=[out], workdir=out / "inner")
    async with Pool(1, preload=[ME], sandbox=sandbox) as pool:
        assert await pool.submit(read, str(given)) == "it"
        with pytest.raises(PermissionError):
            await pool.submit(write, str(given))
        assert await pool.submit(write, "new") == f"{out}/inner/new"
        assert await pool.submit(write, "../other") == f"{out}/inner/../other"
        with pytest.raises(PermissionError):
            await pool.submit(write, f"{tmp_path}/beside")
    assert (out / "inner" / "new").read_text() == "x"


async def test_generated_code_imports_what_is_installed() -> None:
    async with Pool(1, preload=[ME], sandbox=Sandbox.generated_code()) as pool:
        assert "sqlite3" in await pool.submit(import_it, "sqlite3")
        assert "numpy" in await pool.submit(import_it, "numpy")
        with pytest.raises(ModuleNotFoundError) as missing:
            await pool.submit(import_it, "no_such_module_anywhere")
        assert "sandbox" not in str(missing.value)


async def test_an_import_out_of_reach_says_where_the_module_is_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out_of_reach_here.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    async with Pool(1, preload=[ME], sandbox=PARSER) as pool:
        for name, file in (
            ("out_of_reach_here", f"{tmp_path}/out_of_reach_here.py"),
            ("wave", f"{Path(os.__file__).parent}/wave.py"),
        ):
            with pytest.raises(ModuleNotFoundError) as caught:
                await pool.submit(import_it, name)
            assert str(caught.value) == (
                f"the module {name!r} is in {file}, which the sandbox of this worker does not "
                f"let it read: add {name!r} to Pool(preload=...), or its folder to "
                "Sandbox(read=...)"
            )
            assert caught.value.name == name


async def test_tcp_goes_to_the_ports_that_were_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as good,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        port = good.getsockname()[1]
        async with Pool(1, preload=[ME], sandbox=Sandbox(network=[port])) as pool:
            await pool.submit(connect, port)
            with pytest.raises(PermissionError):
                await pool.submit(connect, other.getsockname()[1])
            with pytest.raises(PermissionError):
                await pool.submit(send, port)
            with pytest.raises(PermissionError):
                await pool.submit(listen_unbound)
        async with Pool(1, preload=[ME], sandbox=Sandbox(network=True)) as pool:
            await pool.submit(connect, other.getsockname()[1])
            await pool.submit(send, port)
            assert await pool.submit(listen_unbound) > 0


async def test_programs_run_where_they_are_allowed() -> None:
    sandbox = Sandbox(read=["/bin/true"], processes=None)
    async with Pool(1, preload=[ME], sandbox=sandbox) as pool:
        assert await pool.submit(subprocess.call, ["/bin/true"]) == 0
    async with Pool(1, preload=[ME], sandbox=Sandbox(processes=None)) as pool:
        with pytest.raises(PermissionError):
            await pool.submit(subprocess.call, ["/bin/true"])


async def test_memory_beyond_the_limit_is_an_error_of_the_job() -> None:
    async with Pool(1, preload=[ME], sandbox=Sandbox(memory=64 << 20)) as pool:
        with pytest.raises(MemoryError):
            await pool.submit(take, 100 << 20)
        assert await pool.submit(take, 10 << 20) == 10 << 20


async def test_a_path_leads_where_it_led_before_the_first_job(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    link = tmp_path / "link"
    link.symlink_to("one")
    pool = Pool(1, preload=[ME], sandbox=Sandbox(read=[link]))
    link.unlink()
    link.symlink_to("two")
    async with pool:
        assert await pool.submit(read, str(tmp_path / "one")) == "1"
        with pytest.raises(PermissionError):
            await pool.submit(read, str(link))


async def test_a_worker_has_its_seconds_of_cpu_and_no_more() -> None:
    async with Pool(1, preload=[ME], sandbox=Sandbox(cpu_seconds=0.1)) as pool:
        with pytest.raises(WorkerCrashedError) as caught:
            await pool.submit(compute)
        # The kernel may find both limits passed at once, where the machine was stopped meanwhile.
        assert caught.value.signal in {"SIGXCPU", "SIGKILL"}
        assert await pool.submit(abs, -1) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_root_makes_workers_of_another_user() -> None:
    sandbox = Sandbox(user=65534)
    async with Pool(1, preload=[ME], sandbox=sandbox) as pool:
        ids = os.getuid, os.getgid, os.getgroups
        calls: list[Job[Any]] = [pool.submit(call) for call in ids]
        assert await asyncio.gather(*calls) == [65534, 65534, []]
        assert await pool.submit(programs_may_have) == 0
        _, folder = await pool.submit(environment)
        assert await pool.submit(write, "here") == f"{folder}/here"
        assert Path(folder, "here").stat().st_mode & 0o77 == 0
        with pytest.raises(PermissionError):
            await pool.submit(read, "/etc/passwd")
        # Siblings are the same user, and would be owners of each other's files.
        with pytest.raises(PermissionError):
            await pool.submit(os.chmod, folder, 0)
    assert not Path(folder).parent.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has any")
async def test_root_has_no_capabilities_also_where_a_worker_has_no_namespace() -> None:
    sandbox = Sandbox(network=True, read=["/proc"])
    async with Pool(1, preload=[ME], sandbox=sandbox) as pool:
        status: str = await pool.submit(read, "/proc/self/status")
    assert "\nCapEff:\t0000000000000000\n" in status


async def test_whatever_a_job_leaves_in_its_folder_goes_with_its_worker() -> None:
    async with Pool(1, preload=[ME], sandbox=PARSER) as pool:
        folder = await pool.submit(fill_deeply)
        with pytest.raises(WorkerCrashedError):
            await pool.submit(crash)
        _, other = await pool.submit(environment)
        assert other != folder
        async with patience():
            while Path(folder).exists():
                await look_again()
    assert not Path(folder).parent.exists()
    assert Path("/etc/passwd").exists(), "nobody followed the link"


def cgroups() -> Path | None:
    """Return the root of the cgroups of version 2, if this process may make some there."""
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        root = Path(folder)
        if (root / "cgroup.procs").exists() and os.access(root, os.W_OK):
            return root
    return None


@pytest.mark.skipif(cgroups() is None, reason="no cgroup of version 2 can be made here")
async def test_a_worker_joins_its_cgroup_which_goes_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = cgroups()
    assert root is not None
    give_workers_cgroups(monkeypatch, root)
    async with Pool(1, preload=[ME], sandbox=PARSER) as pool:
        lines = Path(f"/proc/{await pool.submit(os.getpid)}/cgroup").read_text()
        [own] = [line for line in lines.splitlines() if line.startswith("0::")]
        folder = root / own.rpartition("/")[2]
        assert folder.name.startswith(f"asyncpool-{os.getpid()}-")
        assert folder.is_dir()
    assert not folder.exists()
