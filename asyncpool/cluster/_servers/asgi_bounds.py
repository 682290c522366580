"""Bounds for what clients may send before there is a request, and behind it.

uvicorn's protocol for httptools takes heads of any size, and h11 those that are complete when
it sees them, which may be hundreds of kilobytes.  Both of its protocols wait for the rest of
a head as long as the client likes: one client could fill the memory, and a few hundred that
say nothing could take all connections.  The trailers of a chunked body are headers as well.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence
    from typing import Any

    from asyncpool._core.figures.request_figures import RequestFigures

    _Protocol = Any
else:
    _Protocol = object

_TOO_LARGE = "431 Request Header Fields Too Large"
_TOO_LARGE_STATUS = 431
_TOO_LATE = "408 Request Timeout"

# Of each line of a head, besides name and value: ": " and the line's end.
_PER_HEADER = 4


def bounded(
    protocol_class: Any, *, most: int, within: float, figures: RequestFigures
) -> Any:
    """Return a protocol of uvicorn with these bounds; one that is not known as it is.

    Args:
        protocol_class: The class of the protocol.
        most: Bytes of a request's head.  For h11 that is an option of uvicorn, too, which
            bounds a head that is not complete.
        within: Seconds for a head, from its first byte or, for the first one, from the
            beginning of the connection.
        figures: Counts what is refused.
    """
    if hasattr(protocol_class, "on_headers_complete"):
        bounds: Any = _HttptoolsBounds
    elif hasattr(protocol_class, "handle_events"):
        bounds = _H11Bounds
    else:
        return protocol_class
    return type(
        protocol_class.__name__,
        (bounds, protocol_class),
        {"most": most, "within": within, "figures": figures},
    )


def close_late(protocols: Iterable[Any]) -> None:
    """Close the connections whose clients have had their time for a head."""
    now = time.monotonic()
    for protocol in list(protocols):
        until = getattr(protocol, "head_until", None)
        if until is not None and now >= until:
            # A client that has sent nothing gets no answer.
            _refuse(protocol, _TOO_LATE if protocol.in_head() else "")


class _Bounds(_Protocol):  # type: ignore[misc]
    """What is the same for both protocols of uvicorn, before which it stands."""

    most: int
    within: float
    figures: RequestFigures
    head_until: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        above: Any = super()
        above.connection_made(transport)
        self.expect_head()

    def expect_head(self) -> None:
        """Have the time for a head begin, if it has not."""
        if self.head_until is None:
            self.head_until = time.monotonic() + self.within


class _HttptoolsBounds(_Bounds):
    """Knows how much of a head, or of trailers, has come, and since when."""

    _in_head = _in_message = _has_begun = False
    _bytes = 0  # in a row, without anything of a body among them
    _piece = 0  # bytes of the piece that is being read

    def in_head(self) -> bool:
        return self._in_head

    def data_received(self, data: bytes) -> None:
        self._has_begun, self._piece = False, len(data)
        above: Any = super()
        above.data_received(data)
        # Of a piece in which it has begun it is not known how much is the head's.
        if self._in_message and not self._has_begun:
            self._bytes += len(data)
            if self._bytes > self.most:
                said = not self._in_head and self.cycle.response_started
                _refuse(self, "" if said else _TOO_LARGE)

    def on_message_begin(self) -> None:
        above: Any = super()
        above.on_message_begin()
        self._in_head = self._in_message = True
        self._begin_to_count()
        self.expect_head()

    def on_body(self, body: bytes) -> None:
        above: Any = super()
        above.on_body(body)
        self._begin_to_count()

    def on_message_complete(self) -> None:
        self._in_message = False
        above: Any = super()
        above.on_message_complete()

    def _begin_to_count(self) -> None:
        self._has_begun, self._bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head, self.head_until = False, None
        # A head is no larger than the only piece that it came in: to add up takes 0.3 us for each header.
        in_one = self._has_begun and self._piece <= self.most
        if not in_one and _size(self.url, self.headers) > self.most:
            _refuse(self, _TOO_LARGE)
            raise ValueError(_TOO_LARGE)  # the parser stops, see send_400_response
        above: Any = super()
        above.on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            above: Any = super()
            above.send_400_response(msg)


class _H11Bounds(_Bounds):
    """Knows since when a head is coming, and how large it was."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._unbounded_event = self.conn.next_event
        self.conn.next_event = self._next_event
        super().connection_made(transport)

    def in_head(self) -> bool:
        return self._is_idle() and bool(self.conn.trailing_data[0])

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # TLS may bring more of a head that was refused
            return
        if self._is_idle():
            self.expect_head()
        above: Any = super()
        above.data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        above: Any = super()
        above.handle_events()
        if self.cycle is not before:
            self.head_until = None

    def _next_event(self) -> Any:
        """Return what h11 finds, unless it is a head that is too large, or such a part."""
        import h11  # noqa: PLC0415 - with httptools nobody needs it

        in_head = self._is_idle()
        try:
            event = self._unbounded_event()
        except h11.RemoteProtocolError as error:
            # Of a body there is no answer to give: one may have begun.
            if not in_head or error.error_status_hint != _TOO_LARGE_STATUS:
                raise
        else:
            if (
                not isinstance(event, h11.Request)
                or _size(event.target, event.headers) <= self.most
            ):
                return event
        self.logger.warning("a head of more than %d bytes is refused", self.most)
        _refuse(self, _TOO_LARGE)
        return h11.NEED_DATA

    def _is_idle(self) -> bool:
        """Tell whether h11 waits for a request, or for the rest of its head."""
        return str(self.conn.their_state) == "IDLE"


def _size(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Return how large a head is, but for its method, its version, and idle blanks."""
    return len(target) + sum(len(n) + len(v) + _PER_HEADER for n, v in headers)


def _refuse(protocol: Any, status: str) -> None:
    """Close a connection, after an answer if there is a *status*."""
    protocol.head_until = None
    if status:
        protocol.figures.refused += 1
        answer = (
            f"HTTP/1.1 {status}\r\nconnection: close\r\n"
            f"content-type: text/plain\r\ncontent-length: {len(status)}\r\n\r\n{status}"
        )
        protocol.transport.write(answer.encode())
    protocol.transport.close()
