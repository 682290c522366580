"""In which order the journal and the files are written, on which a power loss depends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from asyncpool._cli.journal.journal import START, Done, Journal, Position
from asyncpool._cli.map import run as writer
from asyncpool._cli.map.outputs import Outputs
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS


class Watched(Journal):
    """Notes with each commit what the files hold by then, and what the disk has."""

    def __init__(self, path: str, synced: dict[int, int]) -> None:
        super().__init__(path)
        self._synced = synced
        self.early: list[str] = []  # was in a file before it was in the journal
        self.claims: list[
            tuple[int, int]
        ] = []  # bytes said to be there, and on the disk

    def add(self, done: Sequence[Done], position: Position | None = None) -> int:
        for item in done:
            path = Path("out" if item.ok else "failed")
            if path.exists() and item.line in path.read_text().splitlines():
                self.early.append(item.line)
        if position is not None:
            for path, size in (
                (Path("out"), position.output_bytes),
                (Path("failed"), position.failed_bytes),
            ):
                inode = path.stat().st_ino if path.exists() else 0
                self.claims.append((size, self._synced.get(inode, 0)))
        return super().add(done, position)


@pytest.mark.parametrize("ordered", [True, False])
async def test_no_position_is_committed_before_the_files_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ordered: bool
) -> None:
    synced: dict[int, int] = {}
    fsync = os.fsync

    def note(fd: int) -> None:
        fsync(fd)
        status = os.fstat(fd)
        synced[status.st_ino] = status.st_size

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(writer, "_SYNC_EVERY", 0.0)  # with each commit
    journal = Watched("run.db", synced)
    outputs = Outputs("out", "failed", START, ordered=ordered)
    outputs.open()
    trouble: list[Exception] = []
    at_work = writer.Writer(journal, outputs, lambda *_: None, trouble.append)
    for n in range(20):
        at_work.put([Done(n, 0, ok=n % 3 > 0, line=f"line {n}")])
    async with patience():
        await at_work.close()
    outputs.close()
    journal.close()
    assert (trouble, journal.early) == ([], [])
    assert all(on_disk >= size for size, on_disk in journal.claims)
    # The last ones are about all of both files.
    sizes = [Path(name).stat().st_size for name in ("out", "failed")]
    assert [size for size, _ in journal.claims[-2:]] == sizes
