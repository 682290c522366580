"""Tests of asyncpool/_core/logs/worker_messages.py: see tests/test_log_table.py for more."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpool
from asyncpool._core.logs import worker_messages
from asyncpool._core.logs.log_message import LogMessage

PACKAGE = Path(asyncpool.__file__).parent
IN_WORKERS = (PACKAGE / "_worker", PACKAGE / "cluster" / "_servers")


def test_the_ids_are_those_of_its_messages() -> None:
    found = {
        it.id for it in vars(worker_messages).values() if isinstance(it, LogMessage)
    }
    assert found == worker_messages.IDS
    assert "retire-called" in found


def test_workers_say_these_and_no_others() -> None:
    """The service takes the id off every other one."""
    said, elsewhere = set[str](), set[str]()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        names = set(re.findall(r"\bsay\.([A-Z_]+)\.log\(", text))
        inside = any(folder in path.parents for folder in IN_WORKERS)
        (said if inside else elsewhere).update(names)
    known = {
        name for name, it in vars(worker_messages).items() if isinstance(it, LogMessage)
    }
    assert said == known
    assert elsewhere.isdisjoint(known)
