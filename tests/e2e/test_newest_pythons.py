"""What the newest Pythons have brought: lazy imports, frozen dicts, stacks of C."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.scripts import ROOT, finish, start_script

since_3_15 = pytest.mark.skipif(sys.version_info < (3, 15), reason="Python 3.15")
since_3_14 = pytest.mark.skipif(sys.version_info < (3, 14), reason="Python 3.14")

LAZY = """
import asyncio, json, os, sys, time
from os import path as place
import asyncpool

def modes(name):
    return sys.get_lazy_imports(), place.basename(name), json.dumps([1])

async def later(value):
    await asyncio.sleep(0)
    return value

async def main():
    async with asyncpool.Pool(1, launcher=sys.argv[1]) as pool:
        print(await pool.submit(modes, "a/b"), await pool.submit(later, 3))
        print([item async for item in pool.map(later, range(3))])
        print(len(await pool.submit(sorted, list(range(300_000)))))
        try:
            await pool.submit(os.kill, os.getpid(), "no number")
        except TypeError as error:
            print(type(error.__cause__).__name__)
        try:
            await pool.submit(os.abort)
        except asyncpool.errors.WorkerCrashedError as error:
            print(error.signal)

asyncio.run(main())
"""

FROZEN = """
import asyncio, asyncpool

def swap(value):
    return frozendict({number: name for name, number in value.items()})

async def main():
    small = frozendict(one=1, two=2)
    large = frozendict({str(number): number for number in range(100_000)})
    async with asyncpool.Pool(1) as pool:
        for value in (small, large):
            found = await pool.submit(swap, value)
            print(type(found).__name__, found == swap(value))

asyncio.run(main())
"""

FATAL = """
import asyncio, ctypes, asyncpool

def crash(depth):
    return crash(depth - 1) if depth else ctypes.string_at(0)

async def main():
    async with asyncpool.Pool(1) as pool:
        try:
            await pool.submit(crash, 30)
        except asyncpool.errors.WorkerCrashedError as error:
            print(error)
            print("=", error.stderr_tail[0])

asyncio.run(main())
"""


def run(folder: Path, source: str, *args: str, flags: tuple[str, ...] = ()) -> str:
    """Run a program with every warning an error, and return what it printed."""
    process = start_script(folder, source, *args, command=(*flags, "script.py"))
    out, err = finish(process)
    assert process.returncode == 0, err
    return out


@since_3_15
@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
def test_workers_import_as_lazily_as_their_service(
    tmp_path: Path, launcher: str
) -> None:
    out = run(tmp_path, LAZY, launcher, flags=("-X", "lazy_imports=all"))
    assert out.splitlines() == [
        "('all', 'b', '[1]') 3",
        "[0, 1, 2]",
        "300000",
        "RemoteTraceback",
        "SIGABRT",
    ]


PRELOADED = """
import asyncio, pathlib, sys, asyncpool
pathlib.Path("ap_lazy.py").write_text(
    "lazy import ap_later\\nlazy import nowhere_to_be_found\\n"
)
pathlib.Path("ap_later.py").write_text("lazy from colorsys import hls_to_rgb\\n")

async def main():
    async with asyncpool.Pool(1, preload=["ap_lazy"]) as pool:
        print(await pool.submit(eval, "'colorsys' in __import__('sys').modules"))

asyncio.run(main())
"""


@since_3_15
def test_what_preload_imports_lazily_is_there_before_the_fork(tmp_path: Path) -> None:
    assert run(tmp_path, PRELOADED) == "True\n"


@since_3_15
def test_a_lazy_import_that_fails_is_told_of_before_anything_runs(
    tmp_path: Path,
) -> None:
    source = """
import asyncio, asyncpool
import nowhere_to_be_found

def use():
    return nowhere_to_be_found

async def main():
    async with asyncpool.Pool(1) as pool:
        try:
            await pool.submit(use)
        except asyncpool.errors.JobNotPicklableError as error:
            print(error)

asyncio.run(main())
"""
    out = run(tmp_path, source, flags=("-X", "lazy_imports=all"))
    assert out.startswith("fn cannot be pickled: ")
    assert "No module named 'nowhere_to_be_found'" in out


@since_3_15
def test_frozen_dicts_travel_small_and_large(tmp_path: Path) -> None:
    assert run(tmp_path, FROZEN) == "frozendict True\nfrozendict True\n"


@since_3_14
def test_a_crash_in_c_names_the_error_the_call_and_the_library(tmp_path: Path) -> None:
    # In a job that is so deep, the first lines of all are not among the last ones.
    first, fatal, *frames, tail = run(tmp_path, FATAL).splitlines()
    assert first.startswith("worker ")
    assert fatal == "    Fatal Python error: Segmentation fault"
    assert "Current thread" in frames[0]
    assert "in string_at" in frames[1]
    assert "in crash" in frames[2]
    assert "_ctypes" in frames[4]
    assert tail == "= Fatal Python error: Segmentation fault"


def test_the_quickstart_has_nothing_to_complain_of(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    source = readme.split("```python\n", 1)[1].split("```", 1)[0]
    assert run(tmp_path, source, flags=("-X", "dev"))
