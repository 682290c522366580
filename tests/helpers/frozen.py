"""A program that has pools, frozen by the tools that do that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import ROOT

__all__ = ["UNUSED", "check_frozen", "pyinstaller", "run_frozen", "write_program"]

PROGRAM = """
    import asyncio, multiprocessing, os, sys

    depth = int(os.environ.get("DEPTH", "0"))
    os.environ["DEPTH"] = str(depth + 1)
    if depth > 2:
        os._exit(99)  # a brake

    import asyncpool

    factor = 7

    def times(x):
        return factor * x

    async def main(launcher):
        async with asyncpool.Pool(2, launcher=launcher) as pool:
            print([item async for item in pool.map(times, [1, 2])])
            try:
                await pool.submit(os.abort)
            except asyncpool.errors.WorkerCrashedError as error:
                print(error.signal)
            print(await pool.submit(times, 6), await pool.submit(os.getenv, "ASYNCPOOL_STARTS"))

    if __name__ == "__main__":
        if "FORGETS" not in os.environ:
            multiprocessing.freeze_support()
        asyncio.run(main(sys.argv[1] if sys.argv[1:] == ["spawn"] else "forkserver"))
        with asyncpool.ProcessPoolExecutor(1) as executor:
            print(executor.submit(pow, 2, 5).result(), depth)
"""
PRINTED = "[7, 14]\nSIGABRT\n42 None\n32 0\n"

# What is in the environment of the tests, and the program does not need.
UNUSED = (
    "IPython,PIL,a2wsgi,aiohttp,click,dask,distributed,django,dotenv,hypothesis,joblib,matplotlib,"
    "msgspec,mypy,numpy,opentelemetry,prometheus_client,psutil,pytest,ray,redis,rich,setuptools,"
    "sqlite3,starlette,tkinter,uvicorn,uvloop,watchfiles,websockets"
)


def write_program(folder: Path) -> Path:
    """Write the program that is to be frozen."""
    path = folder / "app.py"
    path.write_text(dedent(PROGRAM))
    return path


def pyinstaller(folder: Path, *options: str) -> Path:
    """Freeze the program; it takes 10 s of a core."""
    command = [sys.executable, "-m", "PyInstaller", "--log-level", "ERROR", *options]
    for name in UNUSED.split(","):
        command += ["--exclude-module", name]
    command += ["--paths", str(ROOT), str(write_program(folder))]
    subprocess.run(command, cwd=folder, timeout=10 * PATIENCE, check=True)
    found = folder / "dist" / "app"
    return found / "app" if found.is_dir() else found


def check_frozen(program: Path, *, forgives: bool = False) -> None:
    """Check that the program works, and without the one call does so or says that it is missing."""
    for launcher in ("forkserver", "spawn"):
        done = run_frozen(program, launcher)
        assert done.stdout == PRINTED, done.stderr
    done = run_frozen(program, FORGETS="1")
    assert (done.stdout == PRINTED) is (done.returncode == 0) is forgives, done.stderr
    if forgives:
        return
    said = done.stderr
    assert f"{program} --multiprocessing-fork ... does not become the launcher" in said
    assert "it runs the program again, which has started a pool in turn" in said
    assert "call multiprocessing.freeze_support() as the first thing" in said


def run_frozen(
    program: Path, *args: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a frozen program to its end."""
    return subprocess.run(
        [program, *args],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
