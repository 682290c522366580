"""Async functions in ``asyncpool map`` and ``call``, as a user runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.helpers.command import lines, numbers, run_command, run_without, write_module

WORK = """
    import asyncio, functools, os, signal, time
    from pathlib import Path

    import asyncpool

    running = most = 0
    meeting = asyncio.Barrier(int(Path("parties").read_text()))

    async def meet(n):
        await meeting.wait()
        return n

    async def count(n):
        global running, most
        running += 1
        most = max(most, running)
        await meeting.wait()
        for _ in range(100):  # time for one too many
            await asyncio.sleep(0)
        running -= 1
        return most

    async def picky(n):
        await asyncio.sleep(0)
        if n == 1:
            raise ValueError("not this one")
        if n == 2:
            raise asyncio.CancelledError("its own")
        if n == 3:
            await asyncio.sleep(1000)
        if n == 4:
            return object()
        if n == 5:
            os._exit(3)
        return n

    async def die_together(n):
        await meeting.wait()
        if n == 2 and not Path("good").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return await asyncio.sleep(0 if Path("good").exists() else 1000, n)

    async def wait(n):
        with Path("begun").open("a") as log:
            log.write(f"{n}\\n")
        while n >= 20 and not Path("good").exists():
            await asyncio.sleep(0.005)
        return n

    async def keywords(name, size):
        return f"{name} has {size}"

    async def loop(n):
        return type(asyncio.get_running_loop()).__module__

    async def computes(n):
        # For the next one there, all steps are slow.
        asyncio.get_running_loop().slow_callback_duration = -1
        await asyncio.sleep(0)

    async def warns(n):
        asyncpool.current_job().logger.warning("heard %s", n)

    class Twice:
        async def __call__(self, n):
            return 2 * n

        async def method(self, n):
            return 2 * n

    def decorate(function):
        @functools.wraps(function)
        def decorated(*args):
            return function(*args)
        return decorated

    async def power(base, n):
        return base * n

    twice = Twice()
    partly = functools.partial(power, 2)
    partly_twice = functools.partial(twice)
    decorated = decorate(partly)

    def plain(n):
        return 2 * n

    def items(n):
        yield n

    async def async_items(n):
        yield n

    class Items:
        def __call__(self, n):
            yield n

    some = Items()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    write_module(tmp_path, WORK)
    (tmp_path / "parties").write_text("4")
    return tmp_path


def begun(folder: Path) -> list[int]:
    log = folder / "begun"
    return [int(n) for n in log.read_text().split()] if log.exists() else []


def test_so_many_are_under_way_at_once_in_a_worker(folder: Path) -> None:
    numbers(folder, 8)
    asked = ("map", "work:meet", "in.jsonl", "--bare", "-w", "1", "--concurrency", "4")
    done = run_command(folder, *asked)
    assert (done.code, done.out) == (0, "".join(f"{n}\n" for n in range(8)))


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_are_under_way_than_is_asked_for(folder: Path, most: int) -> None:
    (folder / "parties").write_text(f"{most}")
    numbers(folder, 30)
    asked = ["map", "work:count", "in.jsonl", "--bare", "-w", "1"]
    asked += ["--concurrency", f"{most}"] * (most > 1)
    done = run_command(folder, *asked)
    assert done.code == 0, done.err
    assert max(int(line) for line in done.out.splitlines()) == most


@pytest.mark.parametrize("several", [[], ["--concurrency", "2"]], ids=["one", "two"])
def test_each_failure_costs_one_item(folder: Path, several: list[str]) -> None:
    numbers(folder, 5)
    with (folder / "in.jsonl").open("a") as file:
        file.write("6\n")
    asked = ("map", "work:picky", "in.jsonl", "--timeout", "1", "-w", "1")
    done = run_command(folder, *asked, *several)
    assert done.code == 1
    assert [json.loads(line)["index"] for line in done.out.splitlines()] == [0, 5]
    failed = lines(folder / "failed.jsonl")
    assert [item["input"] for item in failed] == [1, 2, 3, 4]
    raised, cancelled, late, odd = (item["error"] for item in failed)
    assert (raised["kind"], raised["type"]) == ("raised", "ValueError")
    assert raised["message"] == "not this one"
    first, second, _, *rest = raised["traceback"].splitlines()
    assert first == "Traceback (most recent call last):"
    assert re.search(r'work.py", line \d+, in picky$', second)
    assert rest == ["ValueError: not this one"]
    assert cancelled["kind"] == "raised"
    assert cancelled["type"] == "asyncio.exceptions.CancelledError"
    assert cancelled["message"] == "its own"
    assert late["kind"] == "timeout"
    assert re.search(r'work.py", line \d+ in picky', late["stack"])
    assert odd["message"].startswith("the result cannot be written as JSON: object is")


def test_a_crash_takes_what_is_beside_it(folder: Path) -> None:
    numbers(folder, 4)
    asked = ("map", "work:die_together", "in.jsonl", "-w", "1", "--concurrency", "4")
    done = run_command(folder, *asked, "-o", "out", "--journal", "run.db")
    assert (done.code, (folder / "out").read_text()) == (1, "")
    found = [item["error"] for item in lines(folder / "failed.jsonl")]
    assert [error["kind"] for error in found] == ["crash"] * 4
    assert {len(error["crashes"][0]["concurrent_jobs"]) for error in found} == {3}
    assert all("beside which it ran jobs" in error["message"] for error in found)
    (folder / "good").touch()
    again = run_command(
        folder, *asked, "-o", "out", "--journal", "run.db", "--retry-failed", "--bare"
    )
    assert again.code == 2, "it is another run without --bare"
    again = run_command(
        folder, *asked, "-o", "out", "--journal", "run.db", "--retry-failed"
    )
    assert again.code == 0, again.err
    assert len((folder / "out").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    "name", ["twice", "twice.method", "partly", "partly_twice", "decorated"]
)
@pytest.mark.parametrize("several", [[], ["--concurrency", "2"]], ids=["one", "two"])
def test_whatever_is_async(folder: Path, name: str, several: list[str]) -> None:
    numbers(folder, 3)
    done = run_command(folder, "map", f"work:{name}", "in.jsonl", "--bare", *several)
    assert (done.code, done.out) == (0, "0\n2\n4\n"), done.err


@pytest.mark.parametrize(
    ("asked", "module"), [([], "asyncio.unix_events"), (["--loop", "uvloop"], "uvloop")]
)
def test_the_loop(folder: Path, asked: list[str], module: str) -> None:
    if asked:
        pytest.importorskip("uvloop")
    numbers(folder, 1)
    done = run_command(folder, "map", "work:loop", "in.jsonl", "--bare", *asked)
    assert done.out == f'"{module}"\n'
    done = run_command(folder, "call", "work:loop", "1", *asked)
    assert done.out == f"{module}\n"


def test_a_loop_that_is_not_installed(folder: Path) -> None:
    done = run_without(folder, "uvloop", "call", "work:loop", "1", "--loop", "uvloop")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith(
        "Error: Invalid value for '--loop': uvloop is not installed: "
        "pip install 'asyncpool-supervised[uvloop]'\n"
    )


ASYNC_ONLY = "is not an async function, and {} is about those only: leave it out"
GENERATOR = (
    "is a generator function, and each call has one result: have it return a list"
)


@pytest.mark.parametrize(
    ("name", "asked", "complaint"),
    [
        ("plain", ["--concurrency", "2"], ASYNC_ONLY.format("--concurrency")),
        ("plain", ["--loop", "uvloop"], ASYNC_ONLY.format("--loop")),
        ("items", [], GENERATOR),
        ("async_items", [], GENERATOR),
        ("some", [], GENERATOR),
    ],
)
def test_mistakes(folder: Path, name: str, asked: list[str], complaint: str) -> None:
    if "uvloop" in asked:
        pytest.importorskip("uvloop")
    numbers(folder, 1)
    done = run_command(folder, "map", f"work:{name}", "in.jsonl", *asked)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"asyncpool: work:{name} {complaint}\n"
    if "--concurrency" not in asked:
        done = run_command(folder, "call", f"work:{name}", "1", *asked)
        assert (done.code, done.out) == (2, "")
        assert done.err == f"asyncpool: work:{name} {complaint}\n"


def test_a_call_that_hangs_shows_where_it_waits(folder: Path) -> None:
    done = run_command(folder, "call", "work:picky", "3", "--timeout", "0.5")
    assert (done.code, done.out) == (124, "")
    assert re.search(r'work.py", line \d+ in picky', done.err)


def test_what_holds_up_the_loop_is_told_by_its_name(folder: Path) -> None:
    numbers(folder, 2)
    done = run_command(folder, "map", "work:computes", "in.jsonl", "-w", "1")
    assert done.code == 0
    assert " s by the clock in computes, before line " in done.err


def test_what_a_job_logs_is_seen(folder: Path) -> None:
    done = run_command(folder, "call", "work:warns", "1")
    assert (done.code, done.err) == (0, "heard 1\n")
