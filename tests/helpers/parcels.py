"""What the two sides of a channel do with a payload, without any channel."""

from __future__ import annotations

import pickle
from typing import Any

from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle
from asyncpool._wire.frames import Frame, FrameDecoder

__all__ = ["Array", "GivenUpError", "Pause", "arrived", "plain", "received"]


def plain(payload: bytes | OutOfBandPickle) -> bytes:
    """Return a payload that has to be one that travels like any other."""
    assert type(payload) is bytes
    return payload


def arrived(payload: bytes | OutOfBandPickle) -> bytes | ReceivedPickle:
    """Return what the other side has of a payload: a copy, where it travels apart."""
    if type(payload) is bytes:
        return payload
    assert isinstance(payload, OutOfBandPickle)
    areas = [memoryview(bytearray().join(area)) for area in payload.areas]
    return ReceivedPickle(payload.payload, areas)


def received(decoder: FrameDecoder, data: bytes) -> list[Frame]:
    """Return the frames that *data* completes, wherever it has to go."""
    frames: list[Frame] = []
    while data:
        target = decoder.target
        if target is None:
            return frames + decoder.feed(data)
        size = min(len(data), len(target))
        target[:size] = data[:size]
        frames += decoder.fill(size)
        data = data[size:]
    return frames


class GivenUpError(BaseException):
    """Nobody wants it any more."""


class Pause:
    """Counts, and raises at the last of so many calls."""

    def __init__(self, last: int | None = None) -> None:
        self.calls = 0
        self._last = last

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self._last:
            raise GivenUpError


class Array:
    """Numbers in one buffer, which pickles as those of NumPy do."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and bytes(self.data) == bytes(other.data)

    def __hash__(self) -> int:
        return hash(bytes(self.data))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        assert protocol == 5
        return type(self), (pickle.PickleBuffer(self.data),)
