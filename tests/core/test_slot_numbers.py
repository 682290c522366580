"""What an agent calls by numbers of its own, as its client tells it."""

from __future__ import annotations

from asyncpool._core.remote.client_jobs import (
    SLOTS,
    crash_at_client,
    first_slot,
)
from tests.helpers.crashes import crash_with


def test_the_only_agent_has_the_numbers_of_its_pool() -> None:
    assert first_slot(1) == 0


def test_no_two_agents_have_the_same_numbers() -> None:
    assert first_slot(3) - first_slot(2) == SLOTS == 10_000


def test_a_crash_has_the_clients_number_of_its_slot_and_names_no_job() -> None:
    crash = crash_with(
        slot=3,
        job_id=7,
        attempt=2,
        concurrent_jobs=(8, 9),
        detail="killed since job 8, which it ran too, did not end",
    )
    assert crash_at_client(crash, 20_000, {}) == crash_with(
        slot=20_003, detail="killed since another job did not end", other_jobs=2
    )
