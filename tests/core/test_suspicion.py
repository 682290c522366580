"""When an agent is suspected, and when it is lost."""

from __future__ import annotations

import pytest

from asyncpool._core.remote.client_jobs import SignsOfLife, Silence, Trust


def test_an_agent_is_suspected_before_it_is_lost() -> None:
    signs = SignsOfLife(lease=4.0, patience=6.0, now=0.0)
    assert [signs.trust(now) for now in (1.9, 2.0, 6.0)] == [*Trust]
    signs.heard(5.0)
    assert signs.trust(6.9) is Trust.TRUSTED


def test_an_agent_cannot_be_lost_while_it_may_still_begin_jobs() -> None:
    with pytest.raises(ValueError, match="node_timeout must be at least 4 s"):
        SignsOfLife(lease=4.0, patience=3.0, now=0.0)


def test_a_process_that_hears_nobody_takes_that_for_no_silence() -> None:
    signs = SignsOfLife(lease=4.0, patience=6.0, now=0.0)
    signs.held_up(90.0)
    assert [signs.trust(now) for now in (91.9, 92.0, 96.0)] == [*Trust]
    signs.heard(96.0)
    assert signs.trust(102.0) is Trust.LOST, "after a sign of life it counts as ever"


def test_a_process_that_was_silent_itself_is_told_so() -> None:
    signs = SignsOfLife(lease=4.0, patience=6.0, now=0.0)
    signs.heard(90.0)
    assert signs.silence(90.5, 1.9) == Silence(0.5, 0.0)
    assert signs.silence(90.5, 89.0) == Silence(0.5, 89.0)
    signs.held_up(
        89.0
    )  # it has said something since, and the agent had given it up before
    assert signs.silence(90.5, -0.5) == Silence(0.5, 89.0)
    signs.held_up(0.1)
    assert signs.silence(91.0, 0.1) == Silence(1.0, 0.0)
