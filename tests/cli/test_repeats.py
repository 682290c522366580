"""Which of many messages of a kind are shown."""

from __future__ import annotations

from asyncpool._cli.logs.command_log import Repeats


def test_a_few_of_a_kind_are_shown_and_then_their_number() -> None:
    repeats = Repeats()
    shown = [repeats.admits("a", 1.0) for _ in range(8)]
    assert shown == [True] * 5 + [False] * 3
    assert repeats.admits("b", 2.0)
    assert repeats.over(10.9) == []
    assert repeats.over(11.0) == [("a", 3)]
    assert repeats.admits("a", 11.0), "it begins anew"
    assert repeats.over(100.0) == [], "all were shown"


def test_more_kinds_than_can_be_remembered_are_all_shown() -> None:
    repeats = Repeats()
    for kind in range(1000):
        assert repeats.admits(kind, 1.0)
    assert [repeats.admits("late", 1.0) for _ in range(9)] == [True] * 9
    assert [repeats.admits(0, 1.0) for _ in range(5)] == [True] * 4 + [False]
