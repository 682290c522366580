"""Tests of asyncpool/_core/base/transitions.py."""

from __future__ import annotations

from asyncpool._core.base.transitions import IllegalTransitionError


def test_an_illegal_transition_is_a_bug_of_ours() -> None:
    assert issubclass(IllegalTransitionError, AssertionError)
