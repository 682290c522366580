"""The carrier for one machine: a Unix socket, for processes of this user only."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from typing import cast

from asyncpool._runtime.control.paths import peer_pid, peer_uid
from asyncpool._runtime.remote.carrier import MAX_GREETING

_SIZE = struct.Struct(">Q")


class UnixCarrier(asyncio.Protocol):
    """One end of a Unix socket; see :class:`~asyncpool._runtime.remote.carrier.Carrier`.

    The kernel keeps what was sent and not read, also when the sender has died, and loses nothing.
    """

    def __init__(self) -> None:
        self.loses = False
        self.limit = MAX_GREETING  # whoever uses the carrier allows more then
        self.process: int | None = None
        self._transport: asyncio.Transport | None = None
        self._came = bytearray()
        self.refused = False
        # Whoever uses the carrier sets these.
        self.on_bytes: Callable[[bytes], None] = _drop
        self.on_gone: Callable[[], None] = _nothing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket, unless another user's process is at its other end."""
        self._transport = cast("asyncio.Transport", transport)
        try:
            sock = transport.get_extra_info("socket")
            self.refused = peer_uid(sock) != os.geteuid()
            self.process = peer_pid(sock)
        except OSError:
            self.refused = True
        if self.refused:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hand on what is whole."""
        came = self._came
        came += data
        at = 0
        while len(came) - at >= _SIZE.size:
            size = _SIZE.unpack_from(came, at)[0]
            if size > self.limit:
                self.abort()
                return
            begin = at + _SIZE.size
            if len(came) - begin < size:
                break
            at = begin + size
            self.on_bytes(bytes(memoryview(came)[begin:at]))
        del came[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that the other end is gone."""
        del exc
        self._transport = None
        if not self.refused:
            self.on_gone()

    def send(self, data: bytes) -> None:
        """See :class:`~asyncpool._runtime.remote.carrier.Carrier`."""
        if self._transport is not None:
            self._transport.writelines((_SIZE.pack(len(data)), data))

    def abort(self) -> None:
        """Cut the connection; what is still to be sent is lost."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """See :class:`~asyncpool._runtime.remote.carrier.Carrier`."""
        if self._transport is not None:
            self._transport.close()


def _drop(data: bytes) -> None:
    """Drop what nobody expects."""
    del data


def _nothing() -> None:
    """Do nothing."""
