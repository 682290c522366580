"""What is mistaken often is told where it belongs."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Pool, ProcessPoolExecutor
from asyncpool.errors import JobNotPicklableError
from tests.helpers import jobs
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import PATIENCE, patience

pytestmark = ONE_LOOP


def passes_on(**kwargs: Any) -> Any:
    return jobs.square(**kwargs)


def note(name: str) -> str:
    return (
        f"The function was given {name}=...: as an option of the job it goes into "
        f"Pool.options({name}=...).submit(...)."
    )


REFUSALS: list[tuple[Callable[..., Any], str, list[str]]] = [
    (jobs.square, "timeout", [note("timeout")]),
    (abs, "timeout", [note("timeout")]),
    (int, "key", [note("key")]),
    (jobs.greet, "max_attempts", [note("max_attempts")]),
    (jobs.square, "size", []),
    (passes_on, "timeout", []),  # the call in it is at fault
]


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_an_option_that_a_function_refuses(concurrency: int) -> None:
    async with patience(), Pool(1, concurrency=concurrency) as pool:
        for function, option, noted in REFUSALS:
            with pytest.raises(TypeError) as caught:
                await pool.submit(function, **{option: 3})
            assert getattr(caught.value, "__notes__", []) == noted, function
        # One that a function takes is its own.
        assert await pool.submit(jobs.take, timeout=3, key=4) == 2


async def test_a_map_in_a_plain_loop(pool: Pool) -> None:
    results: Any = pool.map(jobs.square, [1, 2])
    with pytest.raises(TypeError) as caught:
        list(results)
    assert await results == [1, 4]
    assert str(caught.value) == (
        "a map is no plain iterable: use 'async for', or await it"
    )
    # Nor does it take options.
    option = ": as an option of each job it goes into options(timeout=...)"
    for verb, (name, text) in itertools.product(
        ("map", "starmap"), (("timeout", option), ("colour", ""))
    ):
        with pytest.raises(TypeError) as caught:
            getattr(pool, verb)(jobs.square, [1], **{name: 3})
        assert str(caught.value) == f"{verb}() takes no {name}={text}"


async def test_a_breakpoint_needs_a_debugger_without_a_terminal(pool: Pool) -> None:
    with pytest.raises(
        RuntimeError, match=r"^breakpoint\(\) in a worker, which has no"
    ):
        await pool.submit(breakpoint)
    named = {"PYTHONBREAKPOINT": "builtins.abs"}
    async with patience(), Pool(1, worker_env=named) as debugged:
        assert await debugged.submit(jobs.call, breakpoint, -3) == 3


async def test_a_module_that_only_the_program_has(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "apart.py").write_text("def work(): return 1")
    spec: Any = spec_from_file_location(
        "apart", path
    )  # as pytest's importlib mode does
    module: Any = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "apart", module)
    spec.loader.exec_module(module)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="'apart'") as caught:
            await pool.submit(module.work)
        (told,) = caught.value.__notes__
        assert told.startswith(f"This program has {module!r}, which no folder of the w")


async def test_an_open_file_is_no_argument_and_no_result(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text("contents")
    for mode in ("r", "w", "r+", "rb"):
        with path.open(mode) as file, pytest.raises(JobNotPicklableError) as caught:
            await pool.submit(jobs.take, [file])
        text = str(caught.value)
        assert text.startswith("args[0] cannot be pickled: TypeError: cannot ")
        told = "which is open here: send its path, or what is in it"
        if (
            mode == "rb"
        ):  # which the pickler refuses itself, in other words since Python 3.12
            told = "object" if sys.version_info < (3, 12) else "instances"
        assert text.endswith(f"{told} - at `args[0][0]`")
    with pytest.raises(JobNotPicklableError, match="which is open here") as caught:
        await pool.submit(open, str(path))
    assert caught.value.direction == "result"


class Service:
    """Holds what runs its own method, as a program may do."""

    def __init__(self, owner: object) -> None:
        self.owner = owner

    def work(self) -> None: ...


def holds(lock: object, **others: object) -> Callable[[], object]:
    def inner(default: object = others) -> object:
        return lock, default

    return inner


class Guarded:
    """Leaves out a lock of its own."""

    __slots__ = ("guard", "slot")

    def __init__(self, slot: object) -> None:
        self.guard, self.slot = threading.Lock(), slot

    def __getstate__(self) -> object:
        return None, {"slot": self.slot}


def returns_lock() -> object:
    return {"conf": Service(LOCK)}


LOCK = threading.Lock()
PATHS: dict[str, Any] = {
    "args[0]": LOCK,
    "args[0]['a'][1]": {"b": 1, "a": (0, LOCK)},
    "args[0].owner['x y'].owner": Service({"x y": Service(LOCK)}),
    "args[0].<closure>.lock": holds(LOCK),
    "args[0].__defaults__[0]['by'].owner": holds(1, by=Service(LOCK)),
    "args[0].keywords['key']": partial(jobs.take, 1, key=LOCK),
    "args[0].slot": Guarded(LOCK),
}


@pytest.mark.parametrize("path", PATHS)
async def test_the_path_to_what_cannot_be_pickled(pool: Pool, path: str) -> None:
    with pytest.raises(JobNotPicklableError) as caught:
        await pool.submit(jobs.take, PATHS[path], 2)
    where = "" if path == "args[0]" else f" - at `{path}`"
    why = "args[0] cannot be pickled: TypeError: cannot pickle '_thread.lock' object"
    assert (str(caught.value), caught.value.name) == (why + where, "args[0]")
    with pytest.raises(JobNotPicklableError, match="of type dict,") as caught:
        await pool.submit(returns_lock)
    assert " object - at `result['conf'].owner`" in str(caught.value)


async def test_a_method_of_what_holds_the_pool(pool: Pool) -> None:
    async with asyncio.timeout(PATIENCE):
        for owner, kind in [(pool, "Pool"), (pool.options(key=1), "BoundPool")]:
            with pytest.raises(JobNotPicklableError) as caught:
                await pool.submit(Service(owner).work)
            assert str(caught.value) == (
                f"fn cannot be pickled: TypeError: cannot pickle a {kind}, which stays in its "
                "process: leave it out of what the job gets, also out of the object whose "
                "method is called - at `fn.__self__.owner`"
            )
        assert await pool.submit(len, "four") == 4


async def test_what_an_executor_says_is_usual() -> None:
    with ProcessPoolExecutor(1) as executor:
        refused = executor.submit(Service(executor).work)
        with pytest.raises(
            JobNotPicklableError, match=r"^fn cannot be pickled: TypeErr"
        ) as caught:
            await asyncio.wrap_future(refused)
        assert "cannot pickle a ProcessPoolExecutor, which stays" in str(caught.value)
        assert await asyncio.wrap_future(executor.submit(len, "four")) == 4
        locked = executor.submit(jobs.take, threading.Lock()).exception(PATIENCE)
        assert isinstance(locked, pickle.PicklingError)
        # The traceback of an error has its usual name.
        error = executor.submit(jobs.square, "x").exception(PATIENCE)  # type: ignore[arg-type]
        assert isinstance(error, TypeError)
        cause: Any = error.__cause__
        assert "in square" in cause.tb
        assert cause.tb == cause.text


@pytest.mark.parametrize("kind", [Pool, ProcessPoolExecutor])
async def test_an_open_file_in_initargs_is_refused(
    kind: type[Pool | ProcessPoolExecutor], tmp_path: Path
) -> None:
    (path := tmp_path / "file").write_text("contents")
    with path.open() as file, pytest.raises(JobNotPicklableError) as caught:
        kind(1, initializer=print, initargs=(1, file))
    assert str(caught.value) == (
        f"initargs[1] cannot be pickled: TypeError: cannot send {file!r}, "
        "which is open here: send its path, or what is in it"
    )
