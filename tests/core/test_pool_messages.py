"""Tests of asyncpool/_core/logs/pool_messages.py: the table of tests/test_log_table.py has more."""

from __future__ import annotations

import re

import pytest

from asyncpool._core.logs import pool_messages
from asyncpool._core.logs.log_message import LogMessage

MESSAGES = [it for it in vars(pool_messages).values() if isinstance(it, LogMessage)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda it: it.id)
def test_an_id_is_made_of_words(message: LogMessage) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", message.id)


def test_ids_are_unique() -> None:
    assert len({message.id for message in MESSAGES}) == len(MESSAGES)
