"""As much of HTTP/1.1 as the load client needs, without any I/O."""


def request(path: str, *, last: bool = False) -> bytes:
    """Return a request; the *last* one of a connection says so."""
    close = "Connection: close\r\n" if last else ""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{close}\r\n".encode()


class Answer:
    """One answer of the application, as it comes in."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._body_at = 0
        self._length = 0
        self.closes = False
        """Whether the server says that it closes the connection behind this one."""

    @property
    def has_begun(self) -> bool:
        return bool(self._received)

    @property
    def is_complete(self) -> bool:
        return bool(self._body_at) and len(self._received) == self._end

    @property
    def _end(self) -> int:
        return self._body_at + self._length

    @property
    def worker(self) -> int:
        """The process that has answered.

        Raises:
            ValueError: If the body is something else.
        """
        return int(self._received[self._body_at :])

    def feed(self, data: bytes) -> None:
        """Take what was read.

        Raises:
            EOFError: If that is nothing, the end of the connection.
            ValueError: If it is no answer of the application's, or more than one.
        """
        if not data:
            raise EOFError("the connection ends before the answer does")
        self._received += data
        if not self._body_at:
            head, found, _ = self._received.partition(b"\r\n\r\n")
            if not found:
                return
            self._body_at = len(head) + len(found)
            self._read_head(bytes(head))
        if len(self._received) > self._end:
            raise ValueError("more than one answer")

    def _read_head(self, head: bytes) -> None:
        status, *lines = head.split(b"\r\n")
        if status.split(b" ", 2)[:2] != [b"HTTP/1.1", b"200"]:
            raise ValueError(f"not a good status: {status.decode('latin-1')}")
        pairs = (line.lower().partition(b":") for line in lines)
        headers = {name.strip(): value.strip() for name, _, value in pairs}
        if b"content-length" not in headers:
            raise ValueError("the answer does not say its length")
        self._length = int(headers[b"content-length"])
        self.closes = headers.get(b"connection") == b"close"
