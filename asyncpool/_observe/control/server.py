"""Unix sockets of this user alone: those for commands, one line each, and beneath shared pools."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from asyncpool._core import log_messages as say
from asyncpool._engine.life_log import LOGGER, NamedLog
from asyncpool._engine.loop import Alarm
from asyncpool._observe.control.protocol import (
    MAX_REQUEST,
    QUESTIONS,
    Request,
    pack_reply,
)
from asyncpool._observe.control.socket_files import (
    closed_on_error,
    folders_locked,
    listen_at,
    path_of,
    path_of_name,
    peer_uid,
)
from asyncpool._wire.log_records import LogMessage
from asyncpool.errors import ProtocolError

# A Unix socket of this user alone: whoever comes is let in, or turned away.

# Seconds until the next try, when this process may open no more files.
_PAUSE = 0.1

_open_ones: weakref.WeakSet[UserSocket] = weakref.WeakSet()


class UserSocket:
    """Accepts connections of this user's processes.

    Args:
        path: The path of the socket's file.  Its folder is locked; see ``socket_files.py``.
        backlog: How many connections may wait.
        trouble: The log record of a connection that cannot be accepted.
        on_client: Called with each connection, which is non-blocking, and the callee's.
        on_other: Called for each connection that is refused: with the other user, or with the
            error of a system that does not say who it is.

    Attributes:
        path: The absolute path of the socket's file.

    Raises:
        OSError: If somebody listens there already, or the file cannot be made.
    """

    def __init__(
        self,
        path: str,
        backlog: int,
        trouble: LogMessage,
        on_client: Callable[[socket.socket], object],
        on_other: Callable[[int | OSError], object],
    ) -> None:
        self._trouble, self._on_client, self._on_other = trouble, on_client, on_other
        self._loop = asyncio.get_running_loop()
        self._pause = Alarm(self._loop, lambda _: self.listen())
        self._accepted: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with closed_on_error(self._sock):
            self._sock.setblocking(False)
            self._file = listen_at(self._sock, path, mode=0o600, backlog=backlog)
        self.path: str = self._file.path
        _open_ones.add(self)

    def listen(self) -> None:
        """Accept connections from now on; some may have come before, and wait."""
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock, self._accept)

    def rest(self) -> None:
        """Accept none until :meth:`listen` is called."""
        self._loop.remove_reader(self._sock)

    def shut(self) -> None:
        """Remove the file, and accept nobody any more."""
        if self._sock.fileno() < 0:  # it was closed, or is a copy
            return
        self._file.remove()
        self.rest()
        self._pause.cancel()
        self._sock.close()

    def after_fork_in_child(self) -> None:
        """Change into the copy in a process that this one has forked, which answers nobody.

        If the copies stayed open, clients would wait for the end of that process too.
        """
        for sock in (self._sock, *self._accepted):
            # Not close(), which waits until the loop has closed it too.
            if (fd := sock.detach()) >= 0:
                os.close(fd)

    def _accept(self) -> None:
        if self._sock.fileno() < 0:
            return  # the loop of a copy may still look
        # Not asyncio's server, which logs an error if it is closed while a client comes, and whose
        # transports carry no descriptors.  And not sock_accept(), which loses a client that comes
        # while it is cancelled.
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._trouble.log(LOGGER, {}, why=error)
            self.rest()
            self._pause.set_in(_PAUSE)
            return
        sock.setblocking(False)
        try:
            uid: int | OSError = peer_uid(sock)
        except OSError as error:
            uid = error
        if uid == os.geteuid():
            self._accepted.add(sock)
            self._on_client(sock)
        else:
            sock.close()
            self._on_other(uid)


def _after_fork_in_child() -> None:
    for each in _open_ones:
        each.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


# Commands, and who watches.

Answer: TypeAlias = Callable[[Request], Awaitable[dict[str, Any]]]

# What it returns yields how it goes, and is closed when the client is gone.
Watch: TypeAlias = Callable[[Request], Generator[dict[str, Any]]]

_BACKLOG = 16
_MOST_CLIENTS = 32

# Seconds in which a request has to come as a whole: others may not get in meanwhile.
_LINE_TIMEOUT = 10.0

# So that commands still get in.
_MOST_WATCHERS = 16

# Seconds between two looks whether a client is still there that waits for an answer.
_LOOK_EVERY = 0.5


class ControlSocket(UserSocket):
    """Answers the requests of this user's processes.

    Args:
        path: The path of the socket's file, which is for this user only.  Its folder is locked;
            see ``socket_files.py``.
        answer: Returns the answer to a request.  If it raises, the client gets an error.
        watch: Yields what a client is told that wants to watch.

    Attributes:
        name: What commands call its owner.
        which: What commands are told to find it.

    Raises:
        OSError: If somebody listens there already, or the file cannot be made.
    """

    def __init__(self, path: str, answer: Answer, watch: Watch) -> None:
        super().__init__(
            path, _BACKLOG, say.CONTROL_NOT_ACCEPTED, self._begin, _on_other
        )
        self.name = self.which = ""
        self._answer, self._watch = answer, watch
        self._watchers = 0
        self._clients: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Remove the file, and close all connections, for whose end clients may wait.

        Cancellation:
            Leaves connections open.
        """
        self.shut()
        # A client that has just come gets as far as owning its connection.
        await asyncio.sleep(0)
        for task in self._clients:
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients)

    def _begin(self, sock: socket.socket) -> None:
        if len(self._clients) >= _MOST_CLIENTS:
            with contextlib.suppress(OSError):
                sock.send(pack_reply(_refusal("connected", _MOST_CLIENTS)))
            sock.close()
            return
        task = self._loop.create_task(
            self._serve(sock), name="asyncpool control connection"
        )
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, sock: socket.socket) -> None:
        with closed_on_error(sock):
            reader, writer = await asyncio.open_unix_connection(
                sock=sock, limit=MAX_REQUEST
            )
        task = asyncio.current_task()
        assert task is not None

        def look(_: float) -> None:
            if _is_closed(sock):
                task.cancel()
            else:
                alarm.set_in(_LOOK_EVERY)

        alarm = Alarm(self._loop, look)
        try:
            with contextlib.suppress(OSError):  # the client is gone
                while (line := await _next_line(reader)) is not None:
                    try:
                        request = Request.unpack(line)
                    except ProtocolError as error:
                        # Nobody knows where the next line begins.
                        write_reply(writer, {"error": str(error)})
                        break
                    if request.action == "watch":
                        await self._show(request, reader, writer)
                        break
                    if request.action in QUESTIONS:
                        alarm.set_in(_LOOK_EVERY)
                    try:
                        reply = await self._answer(request)
                    except Exception as error:  # noqa: BLE001 - the client is told
                        reply = _failure(request, error)
                    finally:
                        alarm.cancel()
                    write_reply(writer, reply)
                    await writer.drain()
                # It counts as a client until it has got the last answer.
                writer.close()
                await writer.wait_closed()
        except asyncio.CancelledError:
            # Not close(), which would wait for a client that does not read.
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _show(
        self,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Write a line now and each so many seconds, until the client goes or says something.

        A line that the client has not taken yet stays in the connection, and no other one is written
        until it has.  So a client that hangs costs the memory of one line, and no time.
        """
        if self._watchers >= _MOST_WATCHERS:
            return write_reply(writer, _refusal("watching", _MOST_WATCHERS))
        watcher = self._watch(request)
        self._watchers += 1
        lost, due = 0, self._loop.time()
        try:
            while True:
                if writer.transport.get_write_buffer_size():
                    lost += 1
                else:
                    reply = next(watcher)
                    if lost:
                        reply["lost"] = lost
                    lost = 0
                    write_reply(writer, reply)
                # A loop that was blocked does not make up for it.
                due = max(due + request.every, self._loop.time())
                try:
                    async with asyncio.timeout_at(due):
                        said = await reader.read(1)
                except TimeoutError:
                    continue
                if said:
                    error = "a client that watches asks no more"
                    write_reply(writer, {"error": error})
                return None
        except OSError:  # the client is gone
            raise
        except Exception as error:  # noqa: BLE001 - the client is told
            write_reply(writer, _failure(request, error))
        finally:
            self._watchers -= 1
            watcher.close()


def _on_other(who: int | OSError) -> None:
    if isinstance(who, OSError):
        say.CONTROL_UNKNOWN_USER.log(LOGGER, {}, why=who)
    else:
        say.CONTROL_REFUSED.log(LOGGER, {"uid": who})


async def _next_line(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next line; nothing if the client ends before, or takes too long for it."""
    try:
        # Who has asked may wait before the next request, but not in the middle of one.
        line = await reader.readexactly(1)
        async with asyncio.timeout(_LINE_TIMEOUT):
            return line + await reader.readline()
    except (asyncio.IncompleteReadError, TimeoutError):
        return None
    except ValueError:  # the line is longer than the limit
        return b"?"


def write_reply(writer: asyncio.StreamWriter, reply: dict[str, Any]) -> None:
    """Write a reply, which goes out soon.

    Raises:
        ConnectionResetError: If the client is gone.
    """
    # A transport of asyncio drops what is written to it then, and one of uvloop raises a
    # RuntimeError, which could as well be a bug.
    if writer.is_closing():
        raise ConnectionResetError("the client is gone")
    writer.write(pack_reply(reply))


def _is_closed(sock: socket.socket) -> bool:
    """Tell whether the other side is gone.

    Not by the end of what it sends: it may have shut only that down, as ``nc -N`` does, and may
    have sent its next request already.
    """
    polled = select.poll()
    polled.register(sock, 0)  # a hang-up is told anyway
    return any(events & select.POLLHUP for _, events in polled.poll(0))


def _failure(request: Request, error: Exception) -> dict[str, Any]:
    extra = {"action": request.action}
    say.COMMAND_FAILED.log(LOGGER, extra, error=error, request=request)
    return {"error": str(error) or type(error).__name__}


def _refusal(what: str, most: int) -> dict[str, str]:
    return {"error": f"{most} clients are {what} already, and there may be no more"}


# Open a control socket under a name that commands find, or say why there is none.

# How many of one program may have the same name.
_MOST_OF_A_NAME = 100


async def open_control(
    kind: str, name: str, control: str | None, answer: Answer, watch: Watch
) -> ControlSocket | None:
    """Open the control socket; where none can be made, there is only a warning.

    The work of the owner is more important.  But a path that was asked for must be had.

    Args:
        kind: What the owner is: ``"pool"``, or ``"cluster"``.
        name: The owner's name.
        control: The name or path that was asked for; ``None`` for the owner's name.
        answer: Returns the answer to a request.
        watch: Yields what tells a client how it goes that wants to watch.

    Raises:
        OSError: If a socket that was asked for cannot be made, or its name is another one's
            and the owner is a cluster.
        ValueError: If it is no name.

    Cancellation:
        Opens none.
    """
    log, wanted = NamedLog(name, f"{kind} {name}"), control or ""
    tails = [""]
    # Several processes of one service have pools of one name.  A name that was given to a cluster,
    # and is another one's, is more likely to be a mistake.
    if not wanted or (kind == "pool" and "/" not in wanted):
        # What is added to a name while others have it, which was nobody's choice.
        pid = os.getpid()
        tails += [f"-{pid}", *(f"-{pid}-{n}" for n in range(2, _MOST_OF_A_NAME + 1))]

    def path_with(tail: str) -> str:
        # Who asked for no path gets none, whatever the name is.
        find = path_of if wanted else path_of_name
        return find(f"{wanted or name}{tail}", make=True)

    try:
        # The others would be in the same folder.
        async with folders_locked([path_with("")]):
            made = _made(map(path_with, tails), answer, watch)
    except (OSError, ValueError) as error:
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        if "/" in wanted or (in_use and control is not None):
            raise
        how = "Pool(control='/path')" if kind == "pool" else "--control PATH"
        log.now(say.NO_CONTROL, why=error, advice=f"{how} has it elsewhere")
        return None
    made.name, made.which = name, f"--control {made.path}"
    stem = Path(made.path).stem
    with contextlib.suppress(OSError, ValueError):  # names cannot be had, or it is none
        if made.path == path_of(stem):
            made.name = made.which = stem
            if stem != (wanted or name):
                log.now(say.NAME_TAKEN, {"which": stem})
    made.listen()
    return made


def _made(paths: Iterator[str], answer: Answer, watch: Watch) -> ControlSocket:
    """Return the socket at the first of *paths* where nobody listens."""
    path = next(paths)
    while True:
        try:
            return ControlSocket(path, answer, watch)
        except OSError as error:
            following = next(paths, None) if error.errno == errno.EADDRINUSE else None
            if following is None:
                reason = error.strerror or error
                text = f"cannot make the control socket {path}: {reason}"
                raise OSError(error.errno, text) from error
            path = following
