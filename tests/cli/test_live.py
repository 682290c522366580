"""The commands that look at a pool that runs, and change it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command import Done, in_terminal, run_command
from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import start_script
from tests.helpers.serving import until

# Two workers; a job of the first line that comes waits for ever.
PROGRAM = """
import asyncio, os, sys, time
from asyncpool import Pool

def wait():
    open("begun", "x").close()
    time.sleep(3600)

def double(number):
    return 2 * number

async def main():
    async with Pool(2, control=True, ready="all", name="shop") as pool:
        job = pool.submit(wait)
        while not os.path.exists("begun"):
            await asyncio.sleep(0)
        print("here", flush=True)
        while True:
            await asyncio.gather(*(pool.submit(double, n) for n in range(10)))
            await asyncio.sleep(0.01)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


@contextmanager
def program(folder: Path) -> Generator[subprocess.Popen[str]]:
    """Have a program with a pool run meanwhile."""
    process = start_script(folder, PROGRAM)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def status() -> dict[str, Any]:
    done = run_command(Path.cwd(), "status", "shop", "--json")
    return dict(json.loads(done.out))


def busy_slot() -> dict[str, Any]:
    """Return the slot whose worker waits for ever."""
    slots = status()["slots"]
    (found,) = (slot for slot in slots for job in slot["running"] if job["job_id"] == 1)
    return dict(found)


def test_a_pool_is_shown_and_not_changed_by_that(tmp_path: Path) -> None:
    with program(tmp_path) as process:
        before = status()
        assert before["pid"] == process.pid
        _check_table(run_command(tmp_path, "status"), process.pid)
        _check_stacks(tmp_path, busy_slot())
        _check_profiles(tmp_path)
        for words in (["kill", "--slot", "0"], ["recycle"], ["resize", "3"]):
            assert run_command(tmp_path, *words) == Done(
                2,
                "",
                "asyncpool: nothing was done to shop: there is no terminal to confirm it at; "
                "add --yes\n",
            )
        for word in ("reload", "stop"):
            assert run_command(tmp_path, word, "shop") == Done(
                1, "", f"asyncpool: a pool cannot {word}: its program decides that\n"
            )
        after = status()
    assert [it["pid"] for it in before["slots"]] == [it["pid"] for it in after["slots"]]
    assert after["workers"] == 2


def _check_table(done: Done, pid: int) -> None:
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == f"shop  pid {pid}  running  pool"
    assert lines[1].startswith("2 of 2 workers ready   ")
    assert lines[2].split() == [
        *("slot", "pid", "state", "jobs", "up", "CPU", "memory", "for", "function")
    ]
    assert any("__main__.wait (job 1)" in line for line in lines[3:])


def _check_stacks(folder: Path, slot: dict[str, Any]) -> None:
    one = run_command(folder, "stacks", "shop", "--job", "1")
    assert (one.code, one.err) == (0, "")
    heading, first, where, *_ = one.out.splitlines()
    assert heading.startswith(
        f"slot {slot['slot']}, process {slot['pid']}, __main__.wait (job 1) for "
    )
    assert first == "Job 1, attempt 1 (most recent call first):"
    assert where.endswith(" in wait")
    both = run_command(folder, "stacks", "--json")
    assert set(json.loads(both.out)["stacks"]) == {"0", "1"}
    over = run_command(folder, "stacks", "--job", "999999999")
    assert (over.code, over.err) == (
        1,
        "asyncpool: job 999999999 is over, or never was\n",
    )
    assert run_command(folder, "stacks", "--job", "1", "--slot", "0").code == 2


def _check_profiles(folder: Path) -> None:
    asked = ("profile", "-d", "0.5")
    page = run_command(folder, *asked, "--function", "wait", "-o", "f.html")
    text = run_command(folder, *asked, "shop", "-o", "f.txt")
    assert (page.code, text.code) == (0, 0), (page.err, text.err)
    assert "__main__.wait" in page.out
    assert " samples in " in page.err
    assert "<html" in (folder / "f.html").read_text()
    assert "__main__.wait;" in (folder / "f.txt").read_text()


def test_a_pool_is_watched_at_a_terminal(tmp_path: Path) -> None:
    """Until it ends; what the terminal showed last is what is left."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    command = [sys.executable, "-m", "asyncpool", "status", "shop", "--watch"]
    with program(tmp_path) as process:
        victim = busy_slot()["pid"]
        watching = subprocess.Popen([*command, "--every", "0.1"], stdout=theirs)
        os.close(theirs)
        screen = b""
        for shown, killed in (
            (b"jobs/s", victim),
            (b"crash, SIGKILL in __main__.wait", process.pid),
        ):
            while shown not in screen:
                screen += os.read(ours, 65536)
            os.kill(killed, signal.SIGKILL)
        with suppress(OSError):  # Linux says so when the other end is closed
            while os.read(ours, 65536):
                pass
        os.close(ours)
        assert watching.wait(PATIENCE) == 0
    assert b"p99" in screen


def test_who_reads_a_pipe_sees_each_look_at_once(tmp_path: Path) -> None:
    with program(tmp_path) as process:
        words = ("status", "shop", "--watch", "--every", "0.1")
        with subprocess.Popen(
            [sys.executable, "-m", "asyncpool", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as watching:
            assert watching.stdout is not None
            title = f"shop  pid {process.pid}  running  pool\n"
            lines: list[str] = []
            while lines.count(title) < 3:
                lines.append(watching.stdout.readline())
                assert lines[-1], "it has ended"
            process.kill()
            _, err = watching.communicate(timeout=PATIENCE)
    assert (lines[0], lines[-2:]) == (title, ["\n", title])
    assert any(line.startswith("jobs/s") for line in lines)
    assert (watching.returncode, err) == (0, "")


def test_nobody_is_asked_all_the_time(tmp_path: Path) -> None:
    done = run_command(tmp_path, "status", "--watch", "--every", "0.01")
    assert done.code == 2
    assert done.err.endswith(
        "Error: Invalid value for '--every': 0.01 is too often: 0.1 s is the least\n"
    )


def test_who_is_at_a_terminal_types_the_name(tmp_path: Path) -> None:
    with program(tmp_path) as process:
        for typed, workers in (("yes", 2), ("", 2), ("shop", 3)):
            keys = {"Type the name to go on": f"{typed}\n".encode()}
            done = in_terminal(tmp_path, "resize", "shop", "3", keys=keys)
            assert status()["workers"] == workers
            told = f"shop, process {process.pid}: 3 workers instead of 2"
            assert told in done.err
            refused = (1, f"asyncpool: nothing was done: {typed!r} is not 'shop'")
            found = (done.code, done.err.splitlines()[-1])
            assert found == (
                refused if workers == 2 else (0, "3 workers now, 2 before")
            )


@pytest.mark.parametrize("words", [["shop"], ["shop", "0"], ["3", "shop"], ["4097"]])
def test_how_many_workers_comes_last(words: list[str], tmp_path: Path) -> None:
    done = run_command(tmp_path, "resize", *words)
    assert done.code == 2
    assert done.err.endswith(
        f"Error: Invalid value for 'WORKERS': {words[-1]!r} is no number of workers, 1 to 4096; "
        "it comes last: asyncpool resize shop 8\n"
    )


def test_workers_are_killed_and_replaced(tmp_path: Path) -> None:
    """First the one whose job waits for ever."""
    with program(tmp_path):
        index = str(busy_slot()["slot"])
        done = run_command(tmp_path, "kill", "shop", "--slot", index, "--yes")
        assert done == Done(0, "", f"the worker in slot {index} was killed\n")
        until(lambda: status()["restarts"] == 1, "there is another one")
        missing = run_command(tmp_path, "kill", "shop", "--slot", "9", "--yes")
        assert missing.code == 1
        assert missing.err.startswith("asyncpool: there is no worker in slot 9; slots")
        done = run_command(tmp_path, "recycle", "--yes")
        assert done == Done(0, "", "2 workers are new\n")
        slot = next(slot["slot"] for slot in status()["slots"] if slot["pid"])
        done = run_command(tmp_path, "recycle", "--slot", str(slot), "--yes")
        assert (done.code, done.out) == (0, "")


def test_one_way_to_say_which_is_enough(tmp_path: Path) -> None:
    done = run_command(tmp_path, "status", "shop", "--name", "other")
    assert done == Done(2, "", "asyncpool: one NAME is enough: shop or other?\n")
    done = run_command(tmp_path, "status", "shop", "--control", "./x")
    assert done == Done(
        2, "", "asyncpool: NAME and --control say the same: leave one out\n"
    )
