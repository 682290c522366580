"""The numbers of slots where a pool has several agents."""

from __future__ import annotations

from asyncpool._core.remote.slot_numbers import SLOTS, first_slot


def test_the_only_agent_has_the_numbers_of_its_pool() -> None:
    assert first_slot(1) == 0


def test_no_two_agents_have_the_same_numbers() -> None:
    assert first_slot(3) - first_slot(2) == SLOTS == 10_000
