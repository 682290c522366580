"""Tests of asyncpool/_core/cluster/link_rules.py: how many messages may be under way."""

from __future__ import annotations

import pytest

from asyncpool._core.cluster.link_rules import MOST_MESSAGES, MessageCredit
from asyncpool.errors import ProtocolError


def send(credit: MessageCredit, count: int) -> list[bool]:
    """Send so many messages; return whether there was room for one more after each."""
    rooms = []
    for _ in range(count):
        credit.send()
        rooms.append(credit.has_room)
    return rooms


def test_a_sender_has_room_for_so_many_that_nobody_has_taken() -> None:
    credit = MessageCredit("it")
    rooms = send(credit, MOST_MESSAGES)
    assert rooms == [True] * (MOST_MESSAGES - 1) + [False]
    credit.make_room(2)
    assert send(credit, 2) == [True, False]


def test_the_same_count_may_be_told_twice() -> None:
    credit = MessageCredit("it")
    send(credit, 1)
    credit.make_room(1)
    credit.make_room(1)
    assert credit.has_room


@pytest.mark.parametrize("taken", [1, 4])
def test_the_other_end_takes_what_was_sent_and_takes_nothing_back(taken: int) -> None:
    credit = MessageCredit("it")
    send(credit, 3)
    credit.make_room(2)
    with pytest.raises(ProtocolError) as caught:
        credit.make_room(taken)
    assert str(caught.value) == f"it took {taken} messages, after 2 of 3"
    credit.make_room(3)  # what was wrong has changed nothing


def test_one_message_too_many_breaks_the_protocol() -> None:
    credit = MessageCredit("the pool")
    for _ in range(MOST_MESSAGES):
        credit.receive()
    with pytest.raises(ProtocolError) as caught:
        credit.receive()
    assert str(caught.value) == (
        "the pool sent a message beyond the 64 for which there is room"
    )


def test_there_is_room_again_when_the_other_end_was_told() -> None:
    credit = MessageCredit("it", tell_every=2)
    for _ in range(MOST_MESSAGES):
        credit.receive()
    assert credit.take() is None
    with pytest.raises(ProtocolError):
        credit.receive()


def test_the_other_end_is_told_the_sum_as_often_as_was_said() -> None:
    credit = MessageCredit("it", tell_every=3)
    told = []
    for _ in range(7):
        credit.receive()
        told.append(credit.take())
    assert told == [None, None, 3, None, None, 6, None]


def test_the_other_end_is_told_of_each_message_unless_said_otherwise() -> None:
    credit = MessageCredit("it")
    assert [credit.take() for _ in range(3)] == [1, 2, 3]
