"""joblib's ``Parallel`` on supervised workers, as its users call it."""

from __future__ import annotations

import ast
import multiprocessing
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from joblib import Parallel, cpu_count, delayed, hash as joblib_hash, parallel_config
from joblib.parallel import get_active_backend

import asyncpool.joblib
from asyncpool.errors import WorkerCrashedError
from tests.helpers import jobs
from tests.helpers.scripts import ROOT, finish, start_script

pytestmark = pytest.mark.usefixtures("resource_tracked")


@pytest.fixture(autouse=True)
def backend() -> Generator[Any]:
    asyncpool.joblib.register()
    with parallel_config("asyncpool", n_jobs=2):
        yield weakref.proxy(get_active_backend()[0])  # whose workers live as long as it


def squares(count: int) -> list[Any]:
    return [delayed(jobs.square)(number) for number in range(count)]


@pytest.mark.parametrize("options", [{}, {"batch_size": 7}, {"pre_dispatch": "all"}])
def test_calls_run_in_workers_and_return_in_order(options: dict[str, Any]) -> None:
    assert Parallel(**options)(squares(300)) == [n * n for n in range(300)]
    pids = set(Parallel(**options)(delayed(os.getpid)() for _ in range(50)))
    assert os.getpid() not in pids


@pytest.mark.parametrize("return_as", ["generator", "generator_unordered"])
def test_two_generators_of_one_configuration_do_not_disturb_each_other(
    return_as: str,
) -> None:
    one = Parallel(return_as=return_as)(squares(300))
    first = next(one)
    two = Parallel(return_as=return_as)(squares(200))
    three = Parallel(n_jobs=3, return_as=return_as)(squares(100))
    assert sorted(three) == [n * n for n in range(100)]
    assert sorted([first, *one]) == [n * n for n in range(300)]
    assert sorted(two) == [n * n for n in range(200)]


def test_a_generator_that_is_dropped_ends_what_runs() -> None:
    calls = [delayed(jobs.square)(3), delayed(signal.pause)()]
    generator = Parallel(return_as="generator", batch_size=1)(calls)
    assert next(generator) == 9
    with pytest.warns(UserWarning, match="have been cancelled"):
        del generator
    assert Parallel()(squares(3)) == [0, 1, 4]


def test_a_crash_is_told_and_the_same_parallel_goes_on() -> None:
    with Parallel() as parallel:
        with pytest.raises(WorkerCrashedError) as crashed:
            parallel([delayed(os._exit)(3)])
        assert crashed.value.exit_code == 3
        assert parallel(squares(3)) == [0, 1, 4]


def test_an_error_ends_what_runs_beside_and_new_workers_are_prepared_alike(
    tmp_path: Path,
) -> None:
    where = delayed(os.getcwd)()
    with (
        parallel_config(
            "asyncpool", n_jobs=2, initializer=os.chdir, initargs=(tmp_path,)
        ),
        Parallel(batch_size=1) as parallel,
    ):
        assert parallel([where, where]) == [str(tmp_path)] * 2
        with pytest.raises(ZeroDivisionError):
            parallel([delayed(signal.pause)(), delayed(divmod)(1, 0)])
        assert parallel([where, where]) == [str(tmp_path)] * 2


def test_whoever_is_too_slow_is_ended() -> None:
    with pytest.raises(multiprocessing.TimeoutError):
        Parallel(timeout=0.1)([delayed(signal.pause)()] * 2)


def test_batches_of_the_next_parallel_begin_with_one_call(backend: Any) -> None:
    with Parallel() as parallel:
        parallel(squares(2000))
        assert backend.compute_batch_size() > 1
    assert backend.compute_batch_size() == 1


def test_workers_live_on_as_long_as_the_configuration() -> None:
    with parallel_config("asyncpool", n_jobs=2):
        first, second = ({*Parallel()([delayed(os.getpid)()] * 20)} for _ in range(2))
        assert first & second
    assert not [pid for pid in first if Path(f"/proc/{pid}").exists()]


def _look(gate: Path, array: Any) -> tuple[int, tuple[str, ...]]:
    """Return the first number, which becomes another one, and the files that are mapped here."""
    os.close(os.open(gate, os.O_RDONLY))
    found, array[0] = int(array[0]), 99
    maps = Path("/proc/self/maps").read_text().splitlines()
    return found, tuple(line.split()[4] for line in maps if "asyncpool joblib" in line)


def _look_together(gate: Path, arrays: Iterable[Any]) -> list[Any]:
    """Have many calls look, the first of which ends when all are submitted."""

    def calls() -> Iterator[Any]:
        yield from (delayed(_look)(gate, array) for array in arrays)
        fds.append(os.open(gate, os.O_RDWR))

    fds: list[int] = []
    found: list[Any] = Parallel(batch_size=1, pre_dispatch="all")(calls())
    os.close(fds[0])
    return found


def test_an_array_of_many_calls_is_copied_once_and_is_each_calls_own(
    tmp_path: Path,
) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    array = np.full(1 << 18, 7)
    for value in (7, 8):
        array[:] = value
        found = _look_together(gate, [array] * 20)
        assert {number for number, _ in found} == {value}
        assert [len(files) for _, files in found] == [0] + 19 * [1]
        assert len({files for _, files in found[1:]}) == 1
    others = (np.full(1 << 18, 7) for _ in range(20))
    assert _look_together(gate, others) == 20 * [(7, ())]


def _as_it_came(array: Any) -> tuple[bool, bool, str]:
    return type(array) is np.ndarray, array.flags.writeable, joblib_hash(array)


@pytest.mark.parametrize("writeable", [True, False])
def test_each_call_gets_the_same_array(*, writeable: bool) -> None:
    array = np.ones(1 << 18)
    array.flags.writeable = writeable
    calls = [delayed(_as_it_came)(array)] * 8
    found = Parallel(batch_size=1, pre_dispatch="all")(calls)
    assert set(found) == {(True, writeable, joblib_hash(array))}


def _nested(name: str | None) -> tuple[int, set[int]]:
    calls = [delayed(os.getpid)()] * 4
    return os.getpid(), set(Parallel(n_jobs=2, backend=name)(calls))


def test_what_a_call_runs_in_parallel_runs_in_its_threads() -> None:
    for pid, pids in Parallel()([delayed(_nested)(None)] * 2):
        assert pids == {pid}


def test_a_call_may_name_the_backend_too() -> None:
    for pid, pids in Parallel()([delayed(_nested)("asyncpool")] * 2):
        assert pid not in pids


def _threads() -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def test_libraries_in_workers_use_as_many_threads_as_there_are_cores_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = str(max(cpu_count() // 2, 1))
    assert Parallel()([delayed(_threads)()]) == [share]
    with parallel_config("asyncpool", n_jobs=2, inner_max_num_threads=5):
        assert Parallel()([delayed(_threads)()]) == ["5"]
    with parallel_config("asyncpool", worker_env={"OMP_NUM_THREADS": "6"}):
        assert Parallel(n_jobs=2)([delayed(_threads)()]) == ["6"]


def test_how_many_workers_are_meant(backend: Any) -> None:
    assert backend.effective_n_jobs(None) == 1
    assert backend.effective_n_jobs(5) == 5
    assert backend.effective_n_jobs(-1) == cpu_count()
    assert backend.effective_n_jobs(-1000) == 1
    with pytest.raises(ValueError, match=r"^n_jobs == 0 in Parallel has no meaning$"):
        Parallel(n_jobs=0)(squares(2))
    assert Parallel(n_jobs=1)([delayed(os.getpid)()]) == [os.getpid()]


def test_what_nobody_knows_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'mistake'"):
        Parallel(mistake=1)(squares(2))
    assert Parallel()(squares(2)) == [0, 1]


def test_an_interrupted_program_ends_its_calls(tmp_path: Path) -> None:
    os.mkfifo(begun := tmp_path / "begun")
    process = start_script(
        tmp_path,
        """
        import pathlib, signal, sys
        import joblib
        import asyncpool.joblib

        def begin():
            pathlib.Path(sys.argv[1]).write_text("begun")
            signal.pause()

        asyncpool.joblib.register()
        try:
            joblib.Parallel(2, "asyncpool")([joblib.delayed(begin)()])
        except KeyboardInterrupt:
            print("interrupted")
        print(joblib.Parallel(2, "asyncpool")([joblib.delayed(abs)(-1)]))
        """,
        str(begun),
    )
    assert begun.read_text() == "begun"
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert (out, err, process.returncode) == ("interrupted\n[1]\n", "", 0)


def test_nothing_else_imports_joblib() -> None:
    package = ROOT / "asyncpool"
    importing = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None), *(each.name for each in node.names)]
        if name is not None and name.partition(".")[0] == "joblib"
    }
    assert importing == {"joblib"}


@pytest.mark.parametrize(
    ("module", "missing"),
    [("joblib", "joblib"), ("dask", "dask"), ("dask", "distributed")],
)
def test_without_the_extra_the_import_says_how_to_install_it(
    module: str, missing: str
) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"try:\n    import asyncpool.{module}\n"
        "except ModuleNotFoundError as error:\n    print(error.name, error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert told.stdout == (
        f"{missing} asyncpool.{module} needs {missing}, which is not installed: "
        f"pip install 'asyncpool-supervised[{module}]'\n"
    )
