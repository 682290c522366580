"""Messages, sockets and files of workers, as users of the master receive them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from asyncpool._cluster import log_messages as say
from asyncpool._cluster.link import WorkerLink
from asyncpool._cluster.queues import Inbox
from asyncpool._engine.life_log import NamedLog
from asyncpool._wire.posix import ReceivedFile, ReceivedSocket

H = TypeVar("H", bound=ReceivedSocket | ReceivedFile)


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a worker: *worker* is its slot, *generation* its number in that slot."""

    worker: int
    generation: int
    value: Any


class Messages:
    """An iterator over the messages of all workers, which waits for the next."""

    def __init__(self, inbox: Inbox[tuple[WorkerLink, bytes]], name: str) -> None:
        self._inbox = inbox
        self._log = NamedLog(name, f"cluster {name}")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while True:
            link, payload = await anext(self._inbox)
            link.consumed()
            try:
                value = pickle.loads(payload)  # noqa: S301 - workers are trusted
            except Exception as error:  # noqa: BLE001 - the message may hold any object
                extra = {"slot": link.slot}
                self._log.now(say.MESSAGE_UNREADABLE, extra, error=error)
                continue
            return Message(link.slot, link.generation, value)


class SocketIterator(Generic[H]):
    """An iterator over the sockets, or files, of all workers, which waits for the next.

    It yields pairs: the slot of the worker, and the socket or file.
    """

    def __init__(self, inbox: Inbox[tuple[int, H, bytes]], name: str) -> None:
        self._inbox = inbox
        self._log = NamedLog(name, f"cluster {name}")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, H]:
        while True:
            slot, thing, payload = await anext(self._inbox)
            try:
                thing.value = pickle.loads(payload) if payload else None  # noqa: S301 - workers are trusted
            except Exception as error:  # noqa: BLE001 - the value may be any object
                thing.close()
                extra = {"slot": slot}
                self._log.now(say.DESCRIPTOR_UNREADABLE, extra, error=error)
                continue
            return slot, thing
