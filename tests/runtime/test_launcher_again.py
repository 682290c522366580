"""A launcher that is to have imported the script, and cannot be started at first."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from asyncpool._runtime.launcher import launcher, launcher_process as template
from asyncpool._runtime.launcher.launcher import Launcher
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.runtime.test_launcher import ends, start

pytestmark = BOTH_LOOPS


@pytest.mark.parametrize(
    ("module", "name"), [(socket, "socketpair"), (template, "NewLauncher")]
)
async def test_it_is_tried_again(
    module: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "script.py"
    path.touch()
    loop = asyncio.get_running_loop()
    trouble: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: trouble.append(context))
    found, works = Launcher(loop, fork=True, preload=()), getattr(module, name)
    refusals = 0

    def refuse(*_: object) -> Any:
        nonlocal refusals
        refusals += 1
        if refusals == 2:
            monkeypatch.setattr(module, name, works)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with patience():
        with ends() as own:
            process = await start(found, own)
            before = found._process
            script = ("", str(path), ())
            monkeypatch.setattr(launcher, "main_script", lambda: script)
            monkeypatch.setattr(launcher, "_SHORT_LIFE", 0.0)
            monkeypatch.setattr(launcher, "_AGAIN", 0.0)
            monkeypatch.setattr(module, name, refuse)
            found._on_use()
            while found._process is before and not trouble:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            process.close()
        await found.close()
    assert (trouble, refusals) == ([], 2)


async def test_what_comes_into_use_before_the_first_start_is_imported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, begun = tmp_path / "script.py", tmp_path / "begun"
    path.write_text(f"import os; open({str(begun)!r}, 'a').write(f'{{os.getpid()}} ')")
    found = Launcher(asyncio.get_running_loop(), fork=True, preload=())
    monkeypatch.setattr(launcher, "main_script", lambda: ("", str(path), ()))
    found._on_use()
    await asyncio.sleep(0)
    async with patience():
        with ends() as own, ends() as others:
            both = [await start(found, own), await start(found, others)]
            assert found._process is not None
            importers = begun.read_text().split()
            assert found._later is None
            for process in both:
                process.close()
        await found.close()
    assert len(importers) == 1
    assert int(importers[0]) not in [process.pid for process in both]


async def test_a_pool_that_is_closed_tries_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    found, tries = Launcher(loop, fork=True, preload=()), list[object]()

    def refuse(*args: object) -> Any:
        tries.append(args)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with patience():
        with ends() as own:
            process = await start(found, own)
            monkeypatch.setattr(launcher, "_SHORT_LIFE", 0.0)
            monkeypatch.setattr(launcher, "_AGAIN", 0.0)
            monkeypatch.setattr(found, "_find", refuse)
            found._on_use()
            while len(tries) < 3:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            process.close()
        await found.close()
        count = len(tries)
        for _ in range(5):
            await asyncio.sleep(0)
    assert len(tries) == count
