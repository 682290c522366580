"""Run a WSGI application in threads, behind an ASGI server.

a2wsgi did this before.  It has no place for what a server must do when its client leaves: its
thread waits for ever for room in a queue that nobody empties, and a body that broke off ends like a
whole one.

A thread never touches the server.  It appends messages to a list and wakes the event loop, and the
coroutine of the request sends them.  So all decisions about requests are made in the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import io
import os
import sys
import threading
from collections import deque
from math import inf
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes
from wsgiref.util import FileWrapper

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Message = dict[str, Any]

# How many bytes a thread may be ahead of what the server has taken, with what a piece takes besides.
_MOST_BYTES = 65_536
_PER_PIECE = 256

# The key of a scope under which the server finds the call.
CALL = "asyncpool.wsgi"


class Threads:
    """The ASGI application that calls a WSGI application, each request in a thread.

    Args:
        app: The WSGI application.
        count: How many requests run at once; others wait.

    Attributes:
        running: The calls that have a thread.
        waiting: Those that wait for one, in order.
    """

    def __init__(self, app: Any, count: int) -> None:
        self.app = app
        self.count = count
        self.running: set[Call] = set()
        self.waiting: deque[Call] = deque()
        self._changed_at = 0.0  # when a call has begun or ended last
        self._started = 0
        self._work: SimpleQueue[Call] = SimpleQueue()

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Answer a request; WebSockets are refused."""
        if scope["type"] == "http":
            await Call(self, scope, receive, send).run()
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    def held_for(self, now: float) -> float:
        """Return for how many seconds all threads are held, and none has become free."""
        if len(self.running) < self.count:
            return 0.0
        # None of them is likely to become free soon.
        if all(call.over for call in self.running):
            return inf
        return now - self._changed_at

    def waits_for(self, now: float) -> float:
        """Return for how many seconds a request waits for a thread, and none has begun."""
        if not self.waiting:
            return 0.0
        return now - max(self._changed_at, self.waiting[0].since)

    def stuck(self, now: float, seconds: float) -> list[Call]:
        """Return the calls that have done nothing for so long, though their clients wait for it."""
        wanted = (call for call in self.running if not call.over and call.room is None)
        return [call for call in wanted if now - call.moved_at > seconds]

    def begin_next(self) -> None:
        """Hand waiting calls to threads that are free."""
        while self.waiting and len(self.running) < self.count:
            call = self.waiting.popleft()
            call.moved_at = self._changed_at = monotonic()
            self.running.add(call)
            if self._started < len(self.running):
                self._started += 1
                # A daemon, or a stuck thread would keep the process from ending.
                threading.Thread(
                    target=self._serve, name=f"WSGI_{self._started}", daemon=True
                ).start()
            self._work.put(call)

    def end(self, call: Call) -> None:
        """Note that a thread has become free."""
        self._changed_at = monotonic()
        self.running.discard(call)
        self.begin_next()

    def _serve(self) -> None:
        while True:
            self._work.get().work()


class Call:
    """One request; :meth:`run` is its coroutine, and :meth:`work` what its thread does.

    Attributes:
        loop: The event loop.
        since: When it came.
        moved_at: When it began, or sent or received something last.
        over: Whether nobody wants the response any more.
        room: What its thread waits for, if the client has not taken enough yet.
        thread: The thread that runs it, if one has begun.
    """

    def __init__(
        self, threads: Threads, scope: Message, receive: Any, send: Any
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.since = self.moved_at = monotonic()
        self.over = False
        self.thread: int | None = None
        self._threads = threads
        self._scope = scope
        self._receive = receive
        self._send = send
        self._context = contextvars.copy_context()
        self._messages: deque[Message] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._ended = self._woken = False
        self._error: BaseException | None = None
        # Of the thread.
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._head_sent = False
        self._bytes = 0
        self.room: threading.Lock | None = None

    # In the event loop.

    @property
    def runs(self) -> bool:
        """Whether it has a thread."""
        return self in self._threads.running

    async def run(self) -> None:
        """Send what the thread has to say, until it has ended.

        It waits for the thread also if the client leaves or the request is cancelled: as long as a
        thread is held, the request is not over.
        """
        self._scope[CALL] = self
        self._threads.waiting.append(self)
        self._threads.begin_next()
        try:
            while True:
                if not self.over:
                    await self._send_all()
                if self._ended and (self.over or not self._messages):
                    break
                await self._news()
        except BaseException as error:
            self.leave()
            if isinstance(error, asyncio.CancelledError):
                while not self._ended:
                    await self._news()
            raise
        if self._error is not None and not self.over:
            raise self._error

    def leave(self) -> None:
        """Note that the client is gone: nothing that is still to come is wanted."""
        if self in self._threads.waiting:
            self._threads.waiting.remove(self)
            self._ended = True
        self._give_up()
        self._awake()

    async def _send_all(self) -> None:
        messages = self._messages
        try:
            while messages:
                message = messages.popleft()
                if "body" in message and messages:
                    # What is ready goes together: the way through the server takes as long as 10 KB.
                    rest = [messages.popleft() for _ in range(len(messages))]
                    bodies = [message["body"], *(it["body"] for it in rest)]
                    message = {**rest[-1], "body": b"".join(bodies)}
                await self._send(message)
                self.moved_at = monotonic()
        except OSError:  # the client has left
            self._give_up()
        else:
            self._give_room()

    def _give_room(self) -> None:
        # The thread may set it meanwhile, and wakes the loop then.
        if (room := self.room) is not None:
            self.room = None
            room.release()

    def _news(self) -> asyncio.Future[None]:
        self._wake = self.loop.create_future()
        return self._wake

    def _give_up(self) -> None:
        self.over = True
        self._messages.clear()
        self._give_room()

    def ended(self) -> None:
        """Note that the thread has ended the call."""
        self._ended = True
        self._threads.end(self)
        self._awake()

    def _awake(self) -> None:
        self._woken = False
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # In a thread.

    def work(self) -> None:
        """Call the application, and send what it returns."""
        self.thread = threading.get_ident()
        try:
            self._context.run(self._call)
        except BaseException as error:  # noqa: BLE001 - the server tells of it
            self._error = error
        self.thread = None
        self._tell(self.ended)

    def _call(self) -> None:
        pieces = self._threads.app(self._environ(), self._start_response)
        try:
            for piece in pieces:
                if not self._write(piece):
                    return
                if piece and self._scope["method"] == "HEAD":
                    break  # it may be endless, and the client gets none of it
            if not self._head_sent:
                self._say_head()
            self._messages.append({"type": "http.response.body", "body": b""})
            self._wake_loop()  # close() may take any time, and the client waits for nothing of it
        finally:
            if hasattr(pieces, "close"):
                pieces.close()

    def _start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        if exc_info is not None:
            try:
                if self._head_sent:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # or it would refer to this frame
        elif self._head is not None:
            raise AssertionError("start_response() was called twice, without exc_info")
        encoded = [
            (n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in headers
        ]
        self._head = int(status[:3]), encoded
        return self._write_now

    def _write_now(self, piece: bytes) -> None:
        if not self._write(piece):
            raise BrokenPipeError("the client has left")

    def _write(self, piece: bytes) -> bool:
        """Send a piece; return whether there is somebody to send more to."""
        if self.over:
            return False
        if not piece:
            return True
        if not self._head_sent:
            self._say_head()
        self._messages.append(
            {"type": "http.response.body", "body": piece, "more_body": True}
        )
        self._bytes += len(piece) + _PER_PIECE
        if self._bytes <= _MOST_BYTES:
            self._wake_loop()
            return True
        self._bytes = 0
        room = threading.Lock()
        room.acquire()  # whoever gives room releases it
        self.room = room
        # Behind that: the loop looks for a room after it has said that all is over.
        if not self.over:
            self._wake_loop()
            room.acquire()
        return not self.over

    def _say_head(self) -> None:
        if self._head is None:
            raise AssertionError("the application has not called start_response()")
        status, headers = self._head
        self._head_sent = True
        self._messages.append(
            {"type": "http.response.start", "status": status, "headers": headers}
        )

    def _wake_loop(self) -> None:
        # Once for all that it has not looked at: to wake it takes as long as to send some pieces.
        if not self._woken:
            self._woken = True
            self._tell(self._awake)

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: the process ends
            self.over = True

    def receive(self) -> Message:
        """Wait for the next piece of the body, in the thread."""
        future = asyncio.run_coroutine_threadsafe(self._receive(), self.loop)
        message: Message = future.result()
        self.moved_at = monotonic()
        return message

    def _environ(self) -> dict[str, Any]:
        scope = self._scope
        root = scope.get("root_path", "") or os.environ.get("SCRIPT_NAME", "")
        script = root.encode().decode("latin-1")
        path = unquote_to_bytes(scope["raw_path"]).decode("latin-1")
        inside = f"{path}/".startswith(f"{script.rstrip('/')}/")
        host, port = scope.get("server") or ("localhost", 80)
        environ: dict[str, Any] = {
            "REQUEST_METHOD": scope["method"],
            "SCRIPT_NAME": script,
            "PATH_INFO": path[len(script) :] if inside else path,
            "QUERY_STRING": scope["query_string"].decode("latin-1"),
            "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
            "SERVER_NAME": host,
            "SERVER_PORT": str(port or 0),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": scope.get("scheme", "http"),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": self._threads.count > 1,
            "wsgi.multiprocess": True,
            "wsgi.run_once": False,
            # A framework reads a body in chunks only if it may read to the end.
            "wsgi.input_terminated": True,
            "wsgi.file_wrapper": FileWrapper,
        }
        if scope.get("client") is not None:
            environ["REMOTE_ADDR"], remote_port = scope["client"]
            environ["REMOTE_PORT"] = str(remote_port)
        has_body = False
        for raw_name, raw_value in scope["headers"]:
            if b"_" in raw_name:
                continue  # or it would look like the header that a proxy sets, with a hyphen
            name = raw_name.decode("latin-1").upper().replace("-", "_")
            value = raw_value.decode("latin-1")
            has_body |= name in {"CONTENT_LENGTH", "TRANSFER_ENCODING"}
            if name not in {"CONTENT_LENGTH", "CONTENT_TYPE"}:
                name = f"HTTP_{name}"
            before = environ.get(name)
            if before is not None:
                value = f"{before}{'; ' if name == 'HTTP_COOKIE' else ','}{value}"
            environ[name] = value
        body = _Body(self) if has_body else io.BytesIO()
        environ["wsgi.input"] = io.BufferedReader(body) if has_body else body
        return environ


class _Body(io.RawIOBase):
    """The body of a request, as it comes.

    Raises:
        ConnectionResetError: At a read, if the client has left before its end.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._rest = memoryview(b"")
        self._more = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and self._more:
            message = self._call.receive()
            if message["type"] != "http.request":
                raise ConnectionResetError(
                    "the client has left in the middle of its request"
                )
            self._rest = memoryview(message.get("body", b""))
            self._more = message.get("more_body", False)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
