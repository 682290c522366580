"""Programs whose launcher has threads before it forks: of tools, of sites, and of what it imports."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Pool, RestartPolicy, Sandbox
from asyncpool.cluster import Cluster
from asyncpool.errors import PoolBrokenError, WorkerCrashedError
from asyncpool.events import Crash, Recovered
from tests.helpers import jobs
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.sandboxes import needs_sandbox
from tests.helpers.scripts import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks here")

# A site that starts a thread which knows nothing of forks.
SITE = """
import threading, time
threading.Thread(target=time.sleep, args=(10**6,), daemon=True, name="exporter").start()
"""

# Prints what each face has computed, and who had which threads.
PROGRAM = """
import asyncio, logging, os, signal, sys, threading, warnings

import asyncpool
from asyncpool import to_process


def names():
    return sorted(it.name for it in threading.enumerate() if it.name != "MainThread")


def is_fork():
    with open(f"/proc/{os.getpid()}/cmdline") as mine, open(f"/proc/{os.getppid()}/cmdline") as its:
        return mine.read() == its.read()


async def main():
    async with asyncpool.Pool(2, ready="all") as pool:
        print("pool", await pool.submit(pow, 2, 5), await pool.submit(is_fork))
        try:
            await pool.submit(signal.raise_signal, signal.SIGKILL)
        except asyncpool.errors.WorkerCrashedError:
            print("again", await pool.submit(pow, 2, 5))
        print("threads", *await pool.submit(names))
    print("to_process", await to_process.run_sync(pow, 2, 5))


if __name__ == "__main__":
    warnings.simplefilter("default")
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("asyncpool.pool").addFilter(lambda it: getattr(it, "message_id", "") == "not-shared")
    asyncio.run(main())
    with asyncpool.ProcessPoolExecutor(1) as executor:
        print("executor", executor.submit(pow, 2, 5).result())
    import joblib
    import asyncpool.joblib
    asyncpool.joblib.register()
    with joblib.parallel_config(backend="asyncpool"):
        print("joblib", *joblib.Parallel(n_jobs=2)(joblib.delayed(pow)(2, it) for it in (5, 6)))
"""

SERVED = ["pool 32 {fork}", "again 32", "threads {threads}", "to_process 32"]
SERVED += ["executor 32", "joblib 32 64"]

ALONE = (
    "each worker is an interpreter of its own and shares no import, since threads that are "
    "older than any import (exporter) would be missing in a fork: they come from a "
    "sitecustomize, a .pth file or what runs the program; have them started again after a "
    "fork (os.register_at_fork), or by the initializer"
)


def run(folder: Path, *command: str, **variables: str) -> tuple[int, str, str]:
    """Run a program in *folder*, which is in the module path; return what came of it."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", **variables}
    env.pop("PYTHONWARNINGS", None)
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def test_a_thread_of_the_site_costs_interpreters_and_is_told_of_once(
    program: Path,
) -> None:
    (program / "sitecustomize.py").write_text(SITE)
    code, out, err = run(program, "program.py")
    assert (code, err) == (0, "")
    wanted = [it.format(fork=False, threads="exporter") for it in SERVED]
    assert out.splitlines() == [ALONE, *wanted]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (["call", "math:sqrt", "16"], "4.0"),
        (["map", "math:sqrt", "numbers.jsonl", "--bare"], "3.0"),
        (["doctor"], "asyncpool"),
    ],
)
def test_a_thread_of_the_site_keeps_no_command_from_working(
    command: list[str], answer: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    (tmp_path / "numbers.jsonl").write_text("9\n")
    code, out, err = run(tmp_path, "-m", "asyncpool", *command)
    assert code == 0, err
    assert answer in out


APP = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
"""


@pytest.mark.parametrize(
    "command",
    [
        ["serve", "app:app", "--workers", "1", "--bind", "unix:web.sock"],
        ["agent", "--workers", "1", "--bind", "unix:pool.sock"],
    ],
)
def test_a_thread_of_the_site_keeps_nobody_from_serving(
    command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    (tmp_path / "app.py").write_text(APP)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    env["XDG_RUNTIME_DIR"] = str(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-m", "asyncpool", *command],
        cwd=tmp_path,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "Ctrl-C" in line or "sharing pool" in line:
                process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, "".join(said)
    assert sum(ALONE in line for line in said) == 1


OTEL = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_METRICS_EXPORTER": "otlp",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_PYTHON_LOG_LEVEL": "off",
}
OF_OTEL = "OtelBatchSpanRecordProcessor OtelPeriodicExportingMetricReader"
NOT_FROZEN = {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}
TOOLS: dict[str, tuple[list[str], dict[str, str], str | None]] = {
    "opentelemetry-instrument": ([sys.executable], OTEL, OF_OTEL),
    "ddtrace-run": ([sys.executable], {}, None),
    "debugpy": (["--listen", "127.0.0.1:0"], NOT_FROZEN, None),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_workers_of_a_program_under_a_tool_are_forked(tool: str, program: Path) -> None:
    """It starts its threads again in the copy, or ends them before the fork."""
    command, variables, threads = TOOLS[tool]
    installed = Path(sys.executable).with_name(tool)
    if not installed.exists():
        pytest.skip(f"{tool} is not installed; make real installs it")
    command = [str(installed), *command, "program.py"]
    code, out, _ = run(program, *command, **variables)
    wanted = [it.format(fork=True, threads=threads) for it in SERVED]
    found = out.splitlines()
    if threads is None:  # they differ from version to version
        del wanted[2], found[2]
    assert (code, found) == (0, wanted)


# What a module leaves behind, and whose process has imported it.

TELLS = "import os\nPID = os.getpid()\n"

LEAVES = {
    "a thread": "import threading\n"
    "threading.Thread(target=threading.Event().wait, name='gremlin', daemon=True).start()\n",
    "a native thread": "import _thread\n"
    "lock = _thread.allocate_lock()\n"
    "lock.acquire()\n"
    "_thread.start_new_thread(lock.acquire, ())\n",
}


@pytest.mark.parametrize("left", LEAVES)
@pytest.mark.logs("not-shared")
@pytest.mark.asyncio
async def test_a_module_whose_threads_a_fork_loses_is_imported_by_each_worker(
    left: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "ap_before.py").write_text(TELLS)
    (tmp_path / "ap_gremlin.py").write_text(TELLS + LEAVES[left])
    (tmp_path / "ap_after.py").write_text(TELLS)
    monkeypatch.syspath_prepend(tmp_path)
    preload = ["ap_before", "ap_gremlin", "ap_after"]
    for _ in range(2):  # the second one knows
        async with patience(), Pool(1, preload=preload) as pool:
            pids = [
                await pool.submit(eval, f"__import__('{it}').PID") for it in preload
            ]
            parent, own = await pool.submit(os.getppid), await pool.submit(jobs.pid)
            assert pids == [parent, own, parent]
    [record] = [
        it for it in caplog.records if vars(it).get("message_id") == "not-shared"
    ]
    assert "each worker imports ap_gremlin itself, since threads" in record.getMessage()
    assert vars(record)["modules"] == "ap_gremlin"
    assert vars(record)["threads"] == ("native" if "native" in left else "gremlin")


# Of libraries, what a worker finds, and whether all of them share it.
LIBRARIES = {
    "pyarrow": ("pyarrow.array([1, 2]).sum().as_py()", 3, True),
    "pandas": ("int(pandas.Series([1, 2]).sum())", 3, True),
    "polars": (
        "polars.DataFrame({'a': [1, 2]}).lazy().sum().collect().item()",
        3,
        True,
    ),
    "sklearn.ensemble": ("len(sklearn.ensemble.__all__) > 0", True, True),
    "xgboost": ("xgboost.DMatrix([[1, 2]]).num_col()", 2, True),
    "lightgbm": ("lightgbm.Dataset([[1, 2]]).data", [[1, 2]], True),
    # It comes with a neural network that has a pool of threads.
    "pymupdf": ("pymupdf.open().new_page().number", 0, False),
}


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.asyncio
async def test_a_library_with_threads_of_its_own_can_be_preloaded(name: str) -> None:
    call, wanted, shared = LIBRARIES[name]
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; make real installs it")
    where = f"{package}=__import__({name!r})"
    async with patience(), Pool(1, preload=[name]) as pool:
        launcher = await pool.submit(os.getppid)
        assert await pool.submit(eval, f"(lambda {where}: {call})()") == wanted
        maps = Path(f"/proc/{launcher}/maps").read_text()
        assert (package in maps) is shared


@needs_sandbox
@pytest.mark.skipif(importlib.util.find_spec("pymupdf") is None, reason="not installed")
@pytest.mark.asyncio
async def test_a_sandboxed_pool_that_preloads_pymupdf_reads_documents(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = Pool(1, preload=["pymupdf"], sandbox=Sandbox.parser())
    async with patience(), pool:
        pages = "(lambda it: (it.new_page(), it.page_count))(__import__('pymupdf').open())[1]"
        assert await pool.submit(eval, pages) == 1
    said = [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]
    assert said[1:] == []
    assert said[0].startswith("workers in the sandbox have pymupdf without its threads")


# Failures that cannot change.


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
@pytest.mark.parametrize(
    ("source", "starts"),
    [
        ("import ap_missing", 1),
        ("raise RuntimeError('no licence')", 1),
        ("import ctypes\nctypes.CDLL('libap_missing.so.9')", 1),
        ("raise ConnectionRefusedError", 3),
        ("import os\ntry:\n    os.close(-1)\nexcept OSError:\n    raise KeyError", 3),
        ("raise MemoryError", 3),
    ],
)
@pytest.mark.asyncio
async def test_an_import_that_cannot_succeed_is_not_tried_again(
    source: str,
    starts: int,
    launcher: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "ap_failing.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    crashes: list[Crash] = []
    policy = RestartPolicy(initial_delay=0.01, max_failed_starts=3)
    pool = Pool(
        1,
        preload=["ap_failing"],
        launcher=launcher,
        restart_policy=policy,
        on_crash=crashes.append,
    )
    async with patience():
        with pytest.raises(PoolBrokenError) as caught:
            await pool.start()
    assert len(caught.value.crashes) == starts
    assert {crash.final for crash in caught.value.crashes} == {starts == 1}
    if starts == 1:
        assert caught.value.reason == "the start failed, and is likely to fail again"
    assert "ap_failing" in str(caught.value)


@pytest.mark.asyncio
async def test_a_broken_pool_comes_back_when_the_module_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "ap_later.py"
    module.touch()
    async with patience(), Pool(1, preload=["ap_later"], launcher="spawn") as pool:
        module.unlink()
        with pytest.raises(WorkerCrashedError):
            await pool.submit(signal.raise_signal, signal.SIGKILL)
        with pytest.raises(PoolBrokenError, match="and is likely to fail again"):
            await pool.submit(jobs.square, 3)
        module.touch()
        async for event in pool.events():
            if isinstance(event, Recovered):
                break
        assert await pool.submit(jobs.square, 3) == 9


@pytest.mark.asyncio
async def test_a_server_that_cannot_be_imported_ends_at_once() -> None:
    async with patience():
        with pytest.raises(PoolBrokenError) as caught:
            await Cluster("ap_nowhere:serve", workers=1, bind=["127.0.0.1:0"]).start()
    assert [crash.final for crash in caught.value.crashes] == [True]
