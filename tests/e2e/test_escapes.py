"""Workers try to get out: of a sandbox nothing leads out, and of a bare worker everything does."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Pool, Sandbox
from tests.helpers import escapes
from tests.helpers.escapes import ATTEMPTS, SECRET, VARIABLE, Attempt, Target
from tests.helpers.pools import launcher_of
from tests.helpers.sandboxes import needs_sandbox
from tests.helpers.scripts import ROOT

# The kernel, the file system or a container around the tests lacks these.
LACKS = {
    errno.ENOSYS,
    errno.EAFNOSUPPORT,
    errno.EOPNOTSUPP,
    errno.ENOPROTOOPT,
    errno.EPROTONOSUPPORT,
    errno.ENOENT,
    errno.ENOTTY,
}


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What there is to get at."""
    monkeypatch.setenv(VARIABLE, SECRET)
    monkeypatch.setattr(sys, "argv", ["service", "--password=secret"])
    folder, here = tmp_path / "service", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)  # a bare worker leaves there what it makes
    for attempt in ATTEMPTS:
        (folder / attempt.run.__name__).write_text(SECRET)
    closed = tmp_path / "closed"
    closed.write_text(SECRET)
    closed.chmod(0)
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        names = (str(tmp_path / "s"), str(tmp_path / "d"), f"\0asyncpool-{os.getpid()}")
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_STREAM)
        for name, kind in zip(names, kinds, strict=True):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            sock.bind(name)
            if kind is socket.SOCK_STREAM:
                sock.listen()
        victim = stack.enter_context(subprocess.Popen(["sleep", "1000"]))
        stack.callback(victim.kill)
        yield {
            "folder": str(folder),
            "closed": str(closed),
            "service": os.getpid(),
            "victim": victim.pid,
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "stream": names[0],
            "datagram": names[1],
            "abstract": names[2][1:],
            "key": bytes(multiprocessing.current_process().authkey),
        }


async def all_attempts(
    pool: Pool, there: dict[str, Any]
) -> dict[str, str | BaseException]:
    """Return what each attempt has got, or what has stopped it."""
    found: dict[str, str | BaseException] = {}
    async with pool, pool.worker() as worker:
        pids = {slot.pid for slot in pool.stats().slots} - {worker.pid}
        others = {pid for pid in pids if pid is not None}
        parent = await launcher_of(pool)
        target = Target(**there, sibling=others.pop(), launcher=parent)
        for number, attempt in enumerate(ATTEMPTS):
            try:
                found[attempt.name] = await worker.submit(
                    escapes.attempt_by, number, target
                )
            except Exception as error:  # noqa: BLE001 - it is what is looked at
                found[attempt.name] = error
    return found


def was_stopped(attempt: Attempt, error: str | BaseException) -> bool:
    """Return whether that was stopped by what the table says, and did not just fail."""
    if isinstance(error, OSError):
        landlock = error.errno in {errno.EACCES, errno.EXDEV}
        if attempt.stopped_by == "Landlock" and attempt.group == "processes":
            return error.errno == errno.EPERM
        if attempt.stopped_by.startswith("Landlock"):
            return landlock
        if attempt.name == "list the attributes of its file":
            return error.errno == errno.ENOTSUP
        if attempt.name == "read what only root may read, as root":
            return landlock
        return error.errno == (
            errno.EPERM if attempt.group != "limits" else errno.ENOMEM
        )
    return isinstance(error, LookupError) or attempt.group == "limits"


@needs_sandbox
@pytest.mark.asyncio
async def test_nothing_gets_out_of_a_sandbox(there: dict[str, Any]) -> None:
    sandbox = Sandbox(read=[there["closed"]], memory=256 << 20)
    pool = Pool(2, ready="all", preload=["tests.helpers.escapes"], sandbox=sandbox)
    found = await all_attempts(pool, there)
    assert {name: got for name, got in found.items() if isinstance(got, str)} == {}
    wrong = [each for each in ATTEMPTS if not was_stopped(each, found[each.name])]
    assert {each.name: found[each.name] for each in wrong} == {}


@needs_sandbox
@pytest.mark.asyncio
async def test_all_of_it_works_without_one(there: dict[str, Any]) -> None:
    pool = Pool(2, ready="all", preload=["tests.helpers.escapes"])
    found = await all_attempts(pool, there)
    root, succeeded = os.geteuid() == 0, 0
    for attempt in ATTEMPTS:
        got = found[attempt.name]
        succeeded += isinstance(got, str)
        lacking = isinstance(got, OSError) and got.errno in LACKS
        forbidden = attempt.root and (not root or isinstance(got, PermissionError))
        assert isinstance(got, str) or lacking or forbidden, (attempt.name, got)
    assert succeeded >= 40


def test_the_table_in_the_documents_counts_these() -> None:
    page = ROOT / "docs" / "hostile-input.md"
    tried = page.read_text().partition("## What was tried")[2]
    assert f"makes these {len(ATTEMPTS)} attempts" in tried
    rows = re.findall(r"^\| (\S+) \| (\d+) \|", tried, re.MULTILINE)
    counts = Counter(attempt.group for attempt in ATTEMPTS)
    assert {group: int(count) for group, count in rows} == counts
