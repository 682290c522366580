"""Tests of asyncpool/_core/cluster/server_messages.py: see tests/test_log_table.py for more."""

from __future__ import annotations

from asyncpool._core.base import pool_messages
from asyncpool._core.base.log_message import LogMessage
from asyncpool._core.cluster import server_messages


def ids(module: object) -> list[str]:
    return [it.id for it in vars(module).values() if isinstance(it, LogMessage)]


def test_ids_are_unique_and_none_is_one_of_a_pool() -> None:
    servers = ids(server_messages)
    assert len(set(servers)) == len(servers)
    assert set(servers).isdisjoint(ids(pool_messages))
