"""Tests of asyncpool/_core/cluster/server_messages.py: see tests/test_log_table.py for more."""

from __future__ import annotations

from asyncpool._core.cluster import server_messages
from asyncpool._core.logs import pool_messages, worker_messages
from asyncpool._core.logs.log_message import LogMessage


def ids(module: object) -> list[str]:
    return [it.id for it in vars(module).values() if isinstance(it, LogMessage)]


def test_each_id_is_of_one_message() -> None:
    found = [*ids(pool_messages), *ids(server_messages), *ids(worker_messages)]
    assert len(set(found)) == len(found)
