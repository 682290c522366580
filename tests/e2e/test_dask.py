"""Tasks of Dask in supervised workers: what a crash costs, and that all of it ends."""

from __future__ import annotations

import asyncio
import copyreg
import logging
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncpool.dask import pool_plugin
from asyncpool.errors import WorkerCrashedError
from tests.helpers import jobs
from tests.helpers.dask_names import (
    Client,
    LocalCluster,
    WorkerPlugin,
    annotate,
    offload,
)
from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import finish, start_script

# Of Dask's, in a program whose warnings are errors: it makes sockets and loops that it leaves to
# the collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module", autouse=True)
def _thread_that_stays() -> None:
    """Have Dask start the thread that it never ends."""

    async def nothing() -> None:
        await offload(int)

    asyncio.run(nothing())


@pytest.fixture(autouse=True)
def _reducers_as_before() -> Generator[None]:
    """Undo what Dask does with tblib whenever a task fails."""
    before = dict(copyreg.dispatch_table)
    yield
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(before)


@contextmanager
def client_of_cluster(plugin: WorkerPlugin) -> Generator[Client]:
    """Yield the client of a Dask worker in this process, with *plugin*."""
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(plugin)
        yield client


def test_a_crash_costs_one_task() -> None:
    with client_of_cluster(pool_plugin()) as client, annotate(executor="asyncpool"):
        kept = client.submit(jobs.square, 3)
        assert kept.result(PATIENCE) == 9
        with pytest.raises(WorkerCrashedError) as crashed:
            client.submit(os._exit, 3).result(PATIENCE)
        assert crashed.value.exit_code == 3
        assert kept.result(PATIENCE) == 9
        numbers = client.gather(client.map(jobs.square, range(100)))
        assert numbers == [n * n for n in range(100)]
        pids = client.gather(client.map(jobs.pid_for, range(50)))
        assert len(set(pids)) <= 2  # as many as the Dask worker has threads
        assert os.getpid() not in pids


def test_the_plugin_passes_on_what_executors_take(tmp_path: Path) -> None:
    plugin = pool_plugin(1, initializer=os.chdir, initargs=(tmp_path,))
    with client_of_cluster(plugin) as client, annotate(executor="asyncpool"):
        assert client.submit(os.getcwd).result(PATIENCE) == str(tmp_path)
        assert len({*client.gather(client.map(jobs.pid_for, range(50)))}) == 1


def test_a_mistake_in_the_options_is_told_as_the_plugin_is_registered() -> None:
    with (
        pytest.raises(ValueError, match=r"^max_workers must be greater than 0$"),
        client_of_cluster(pool_plugin(0)),
    ):
        pass


def _begin(path: str) -> None:
    Path(path).write_text("begun")
    signal.pause()


def test_a_cluster_that_closes_ends_what_runs(tmp_path: Path) -> None:
    os.mkfifo(begun := tmp_path / "begun")
    with client_of_cluster(pool_plugin()) as client, annotate(executor="asyncpool"):
        running = client.submit(_begin, str(begun))
        waiting = client.map(jobs.square, range(1000))
        assert begun.read_text() == "begun"
        assert len(waiting) == 1000
        del running


def test_a_plugin_that_is_unregistered_takes_its_pool_away() -> None:
    with client_of_cluster(pool_plugin()) as client, annotate(executor="asyncpool"):
        assert client.submit(jobs.square, 4).result(PATIENCE) == 16
        client.unregister_worker_plugin("asyncpool")
        with pytest.raises(ValueError, match=r"^Invalid executor 'asyncpool'"):
            client.submit(jobs.square, 5).result(PATIENCE)


def test_under_a_nanny_a_dask_worker_survives_its_task_and_all_ends(
    tmp_path: Path,
) -> None:
    process = start_script(
        tmp_path,
        """
        import logging, multiprocessing, os, pathlib, signal
        import dask
        from distributed import Client, LocalCluster
        import asyncpool
        from asyncpool.dask import pool_plugin

        def begin():
            pathlib.Path("begun").write_text("begun")
            signal.pause()

        def is_daemonic():
            return multiprocessing.current_process().daemon

        if __name__ == "__main__":
            os.mkfifo("begun")
            cluster = LocalCluster(
                n_workers=1, threads_per_worker=2, dashboard_address=":0",
                silence_logs=logging.CRITICAL,
            )
            with cluster, Client(cluster) as client:
                client.register_plugin(pool_plugin())
                before = client.run(os.getpid)
                print(*client.run(is_daemonic).values())
                with dask.annotate(executor="asyncpool"):
                    crash = client.submit(os._exit, 3).exception()
                    print(isinstance(crash, asyncpool.errors.WorkerCrashedError), crash.exit_code)
                    print(client.submit(pow, 2, 5).result())
                    print(client.run(os.getpid) == before)
                    running = client.submit(begin)
                    waiting = client.map(abs, range(1000))
                    print(pathlib.Path("begun").read_text())
            print("closed")
        """,
        command=("-W", "ignore", "script.py"),
    )
    out, _ = finish(process)
    assert out == "True\nTrue 3\n32\nTrue\nbegun\nclosed\n"
    assert process.returncode == 0
