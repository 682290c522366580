"""Which broadcasts a new worker gets."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.options import JobOptions
from asyncpool._engine import sessions
from asyncpool._engine.sessions import Broadcast, Broadcasts
from asyncpool._wire.pickling import PICKLE


class WithoutWorkers(Broadcasts):
    _targets: Any = tuple
    _call: Any = None
    _results: Any = None
    __init__: Any = functools.partialmethod(Broadcasts.__init__, None, None)

    def begin(self, name: str, payload: bytes) -> Broadcast:
        self._begin(new := Broadcast(name, payload, JobOptions(), PICKLE))
        return new

    def end(self, broadcast: Broadcast, *, remember: bool = True) -> list[bytes]:
        self._end(broadcast, remember=remember)
        return [each.payload for each in self.remembered]


def test_who_took_longer_than_a_later_one_is_not_remembered() -> None:
    memory = WithoutWorkers()
    old, new = memory.begin("one", b"old"), memory.begin("one", b"new")
    assert memory.end(new) == memory.end(old) == [b"new"]


def test_all_together_have_no_more_bytes_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "MAX_BROADCASTS", 10)
    memory = WithoutWorkers()
    memory.end(memory.begin("one", bytes(4)))
    memory.begin("other", bytes(3))
    # What it replaces does not count.
    memory.end(memory.begin("one", bytes(7)), remember=False)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - all of it is compared
        memory.begin("len", bytes(4))
    assert str(caught.value) == (
        "the call of len has 4 bytes when pickled, the broadcasts before it have 7, and "
        "10 is the most, since every new worker gets them: have the function load what "
        "is large, from a file for example"
    )


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans())))
def test_however_many_there_are_only_one_of_each_is_kept(
    told: list[tuple[str, bool]],
) -> None:
    """The bound on what a start takes; some of them fail, and change nothing."""
    memory, last = WithoutWorkers(), dict[str, bytes]()
    for number, (name, good) in enumerate(told):
        payload = b"%d" % number
        if good:
            last.pop(name, None)
            last[name] = payload
        assert memory.end(memory.begin(name, payload), remember=good) == [
            *last.values()
        ]
