"""The two ends of a link: each message arrives once and in order."""

from __future__ import annotations

import pytest

from asyncpool._core.remote_wire.reliable_link import (
    ACKNOWLEDGE_EVERY,
    MAX_BATCH,
    Batch,
    ReliableLink,
)
from asyncpool.errors import ProtocolError


def test_a_batch_is_read_as_it_was_written() -> None:
    batch = Batch(7, 3, 2, 11, 9, 0, [b"", b"one", b"two"])
    assert Batch.unpack(batch.pack()) == batch


@pytest.mark.parametrize(
    "data", [b"", b"short", Batch(1, 1, 0, 0, 0, 0, [b"ab"]).pack()[:-1]]
)
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Batch.unpack(data)


def test_only_a_single_message_may_be_large() -> None:
    large = bytes(4 * MAX_BATCH)
    assert Batch.unpack(Batch(1, 1, 0, 0, 0, 0, [large]).pack()).messages == [large]
    for several in ([large, b""], [b""] * MAX_BATCH):
        with pytest.raises(ProtocolError, match="a batch of"):
            Batch.unpack(Batch(1, 1, 0, 0, 0, 0, several).pack())


def test_a_message_arrives_once_whatever_comes_twice_or_early() -> None:
    one, other = ReliableLink(1), ReliableLink(1)
    one.put(b"a")
    first = one.next_batch()
    one.put(b"b")
    second = one.next_batch()
    assert other.receive(second) == []  # "a" is missing
    assert other.receive(first) == [b"a"]
    assert other.receive(first) == []
    assert other.receive(one.repeat()) == [b"b"]
    assert one.receive(other.next_batch()) == []
    assert one.unacknowledged == 0


def test_no_message_is_missing_where_none_can_be_lost() -> None:
    one, other = ReliableLink(1), ReliableLink(1, gapless=True)
    one.put(b"a")
    assert other.receive(one.next_batch()) == [b"a"]
    one.put(b"b")
    one.next_batch()
    one.put(b"c")
    with pytest.raises(ProtocolError, match=r"^1 messages are missing before 3$"):
        other.receive(one.next_batch())


def test_an_end_acknowledges_by_itself_after_some_messages() -> None:
    one, other = ReliableLink(1), ReliableLink(1)
    for _ in range(ACKNOWLEDGE_EVERY):
        one.put(b"a")
    other.receive(one.next_batch())
    owed = [other.owes]
    one.receive(other.next_batch())
    owed.append(other.owes)
    assert owed == [True, False]
    assert not one.unsent


def test_an_end_that_waits_for_an_acknowledgement_gets_it_at_once() -> None:
    one, other = ReliableLink(1), ReliableLink(1)
    assert [one.put(b"a"), one.put(b"b")] == [1, 2]
    other.receive(one.next_batch())
    owed = [other.owes]
    other.owe()
    owed.append(other.owes)
    known = [one.acknowledged]
    one.receive(other.next_batch())
    owed.append(other.owes)
    known.append(one.acknowledged)
    assert owed == [False, True, False]
    assert known == [0, 2]
    assert one.put(b"c") == 3


def test_a_batch_has_a_bound_but_any_message_travels() -> None:
    link = ReliableLink(1)
    for _ in range(3):
        link.put(bytes(MAX_BATCH))
    assert [len(link.next_batch().messages) for _ in range(4)] == [1, 1, 1, 0]


def test_an_acknowledgement_of_what_was_not_sent_is_refused() -> None:
    link = ReliableLink(1)
    link.put(b"a")
    with pytest.raises(ProtocolError, match="acknowledges 1 messages of 0"):
        link.receive(Batch(1, 1, 1, 0, 0, 0, []))


def test_an_agent_says_when_it_took_what_it_acknowledges() -> None:
    client, agent = ReliableLink(1), ReliableLink(1)
    client.put(b"a")
    first = client.next_batch()
    agent.receive(first, 30)
    agent.receive(first, 50)  # there is nothing new in it
    batch = agent.next_batch(70)
    assert (batch.acknowledged, batch.taken_at, batch.stamp) == (1, 30, 70)
    client.receive(batch)
    assert client.next_batch().taken_at == 0
