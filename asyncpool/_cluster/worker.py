"""A worker that serves: its end of the link, its life, and what the user's code uses it through."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import pickle
import socket
import sys
import termios
from _thread import (
    get_ident,
)  # not threading, which imports more: see _worker/__init__.py
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from asyncpool._cluster.acceptor import Acceptor
from asyncpool._cluster.link import (
    Inbox,
    Link,
    Mail,
    Received,
    check_message,
    message_of,
    thing_of,
)
from asyncpool._cluster.rules import DrainLimit, DrainTimes
from asyncpool._engine.channel import READ_SIZE, Channel, DescriptorSocket
from asyncpool._wire import log_records as say, posix
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.messages import COROUTINE, MAX_REASON, pack_numbers
from asyncpool._wire.records import import_named
from asyncpool._worker.channels import own_logger, print_error
from asyncpool._worker.stacks import line_of, waiting_frames
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from io import IOBase

    from asyncpool._wire.posix import ReceivedFile, ReceivedSocket
    from asyncpool._worker.channels import Control
    from asyncpool._worker.runner import JobRunner

    Target = Callable[["Worker"], Awaitable[object]]

# What the service manager tells the master.  A program that a worker starts would take it for
# itself.
_MASTERS = (
    *("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"),
    *("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"),
)

# The most tasks that are shown, the most calls of each, and the most characters in all.
_MOST_TASKS = 100
_DEEPEST = 20
_LONGEST = 16_384

# The most characters in which a worker tells of its open requests.
_MOST_OF_REQUESTS = 50_000

# Seconds in which code that is cancelled at the end of its time may clean up.  The pool ends the
# process after a second, so it is less.
_CLEAN_UP = 0.5

# How many accepted connections wait here for the user's code.  The others wait in the backlog.
_MOST_WAITING = 16

# More addresses are too many for a line in a log.
_MOST_SHOWN = 10

# Each read brings one descriptor at most.  After these reads the rest of the loop has its turn.
_READS_PER_TURN = 16

# From this many unsent bytes on, the worker reads nothing that may need an answer.
_MOST_UNSENT = 262_144

# Seconds between two looks whether the pool has read all.
_LOOK_AGAIN = 0.01

# The number of a RETIRE frame from a worker that goes on serving until there is another one.
_NOT_YET = 1


class Worker:
    """A worker of a cluster, for its ``serve(worker)``.

    Only the worker's event loop may use it, but for :meth:`retire` and :meth:`request_replacement`.

    Attributes:
        id: Its slot.  Its replacement may have another slot, and numbers may be missing.
        generation: Which worker of this slot it is, counting from 1.
        listening_sockets: The listening sockets, if workers accept connections themselves
            (``spread`` is ``"shared"``).  Use them or :meth:`connections`, not both.  If
            you use them, close them when the worker drains.
    """

    def __init__(self, slot: int, generation: int, link: Any) -> None:
        self.id = slot
        self.generation = generation
        self.listening_sockets: list[socket.socket] = link.listeners
        # Private: only asyncpool makes workers.
        self._link: MasterLink = link

    @property
    def drain_timeout(self) -> float:
        """Seconds that the worker has to drain; it depends on whether others serve meanwhile."""
        return self._link.time.limit

    @property
    def is_draining(self) -> bool:
        """Whether the worker drains: it takes no new connections, and ends when it has none."""
        return self._link.draining.is_set()

    @property
    def can_give_back(self) -> bool:
        """Whether :meth:`give_back` works: there are other workers that continue to serve."""
        return self._link.returning

    def ready(self) -> None:
        """Say that the worker can serve.  Further calls change nothing.

        Until then it gets no connection, and the worker that it replaces continues to serve.
        """
        self._link.ready()

    async def wait_draining(self) -> None:
        """Wait until the worker is to drain.

        **Cancellation:** safe.
        """
        await self._link.draining.wait()

    def retire(self, reason: str = "") -> None:
        """Announce the worker's end: it drains, and the master starts a replacement at once.

        Any thread may call it.  Further calls change nothing.

        Args:
            reason: What the log says.
        """
        self._link.leave(reason, at_once=True)

    def request_replacement(self, reason: str = "") -> None:
        """Ask for a replacement: the worker serves until that is ready, and then drains.

        Any thread may call it, once the worker is ready.  Further calls change nothing.

        Args:
            reason: What the log says.
        """
        self._link.leave(reason, at_once=False)

    def connections(self) -> AsyncIterator[Connection]:
        """Yield the connections that this worker is to serve, until it drains.

        It also yields the connections that arrived before that.  Take them fast, and serve
        each in a task of its own: a connection that you do not take goes to another worker.
        """
        return self._link.connections()

    def give_back(self, sock: socket.socket) -> bool:
        """Give a connection to another worker, while this one drains.

        Use it for a connection that is idle between two requests.  Its client does not
        notice, and does not lose a request that it is just sending, as it would if this
        worker closed the connection.

        Args:
            sock: The connection.  It is closed here if the result is true.

        Returns:
            Whether there is another worker.  There is none if the whole cluster ends.

        Raises:
            OSError: If there is no descriptor left for it.  It is not closed then.
        """
        if not self._link.returning:
            return False
        self._link.hand(os.dup(sock.fileno()))
        sock.close()
        return True

    def opened(self) -> None:
        """Count a connection that did not come from :meth:`connections`."""
        self._link.load.open_one()

    def closed(self) -> None:
        """Count the end of such a connection."""
        self._link.load.close_one()

    def lost(self) -> None:
        """Count a connection that was closed because :meth:`give_back` had no descriptor."""
        self._link.load.lose_one()

    async def send(self, value: object) -> None:
        """Send a message to ``Cluster.messages()``; wait while too many are on their way.

        **Cancellation:** safe; the message is sent whole or not at all.

        Args:
            value: Any object that can be pickled.

        Raises:
            ValueError: If it is too large.
            BrokenPipeError: If the cluster takes no more messages.
        """
        payload = check_message(pickle.dumps(value, 5))
        await self._link.until_sent(_MOST_UNSENT)
        if not await self._link.send(payload):
            raise BrokenPipeError("the pool takes no more messages")

    def messages(self) -> AsyncIterator[Any]:
        """Yield the messages of ``Cluster.send()`` to this worker, until it drains."""
        return Received(
            self._link.mail.messages, message_of, partial(_tell_dropped, "a message")
        )

    async def send_socket(self, sock: socket.socket, value: object = None) -> None:
        """Send a copy of a socket to ``Cluster.incoming_sockets()``; wait until it arrives.

        **Cancellation:** the socket may still arrive.

        Args:
            sock: A socket of any kind.
            value: An object that travels with it, of up to 64 KiB when pickled.

        Raises:
            TypeError: If *sock* is no socket.
            ValueError: If *value* is too large.
            OSError: If the cluster has no descriptor left for it, or ends.
        """
        await self._send(posix.socket_descriptor(sock), value, "socket")

    def incoming_sockets(self) -> AsyncIterator[ReceivedSocket]:
        """Yield the sockets of ``Cluster.send_socket()`` to this worker, until it drains.

        The attribute ``value`` of each is the object that was sent with it.
        """
        tell = partial(_tell_dropped, "the value of a socket")
        return Received(self._link.mail.sockets, thing_of, tell)

    async def send_file(self, file: IOBase | int, value: object = None) -> None:
        """Send a copy of a file to ``Cluster.incoming_files()``; wait until it arrives.

        **Cancellation:** the file may still arrive.

        Args:
            file: An open file, a pipe, or another object with a descriptor, but no socket
                or directory.
            value: An object that travels with it, of up to 64 KiB when pickled.

        Raises:
            TypeError: If *file* is no such object.
            ValueError: If *value* is too large.
            OSError: If the cluster has no descriptor left for it, or ends.
        """
        await self._send(posix.file_descriptor(file), value, "file")

    def incoming_files(self) -> AsyncIterator[ReceivedFile]:
        """Yield the files of ``Cluster.send_file()`` to this worker, until it drains.

        They are raw binary files.  The attribute ``value`` of each is the object that was
        sent with it.
        """
        tell = partial(_tell_dropped, "the value of a file")
        return Received(self._link.mail.files, thing_of, tell)

    async def _send(self, descriptor: int, value: object, what: str) -> None:
        payload = b"" if value is None else posix.check_beside(pickle.dumps(value, 5))
        if self._link.ended.is_set():
            raise BrokenPipeError(f"the pool takes no more {what}s")
        if not await self._link.ship(os.dup(descriptor), payload):
            raise OSError(f"the pool could not take the {what}")


def _tell_dropped(what: str, _: object, error: Exception) -> None:
    say.VALUE_UNREADABLE.log(own_logger(), {}, error=error, what=what)


class Load:
    """How many connections were opened and closed, in all.

    Args:
        loop: The loop in which they are counted.
        changed: Called in it after each change.

    Attributes:
        sockets: The sockets that were opened here and still exist; some may be closed.
        cut: How many connections were cut off, because the worker's time to drain was over.
        lost: How many could not go to another worker, because no descriptor was left.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]
    ) -> None:
        self.opened = self.closed = self.cut = self.lost = 0
        self.sockets: WeakSet[socket.socket] = WeakSet()
        self._loop, self._changed = loop, changed
        self._thread = get_ident()

    @property
    def open(self) -> int:
        """How many are open."""
        return self.opened - self.closed

    def tell_who(self) -> str:
        """Tell whose connections are open, as far as that is known."""
        names = [name for sock in list(self.sockets) if (name := _peer_of(sock))]
        shown = sorted(names)[:_MOST_SHOWN]
        left = self.open - len(shown)
        return ", ".join(shown) + (f" and {left} more" if left and shown else "")

    def open_one(self) -> None:
        """Count one more."""
        self.opened += 1
        self.cut += self.cut > 0
        self._changed()

    def cut_off(self) -> None:
        """Count all open connections as cut off."""
        self.cut = self.open
        self._changed()

    def lose_one(self) -> None:
        """Count a connection that was closed instead of going to another worker."""
        self.lost += 1
        self._changed()

    def close_one(self) -> None:
        """Count one less.  Any thread may call it, for example in a garbage collection."""
        if get_ident() == self._thread:
            self._count_closed()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._count_closed)

    def _count_closed(self) -> None:
        self.closed += 1
        self._changed()


class _CountedSocket(socket.socket):
    """A socket that reports its end: it was closed, detached or collected as garbage."""

    __slots__ = ("_load",)

    def __init__(self, load: Load, descriptor: int) -> None:
        self._load: Load | None = None
        super().__init__(fileno=descriptor)
        self._load = load
        load.sockets.add(self)
        load.open_one()

    def close(self) -> None:
        super().close()
        if self.fileno() < 0:  # no file made of it is left
            self._count()

    def dup(self) -> socket.socket:  # type: ignore[override]
        # The copy is another socket, which nobody counts.
        descriptor = os.dup(self.fileno())
        return socket.socket(self.family, self.type, self.proto, fileno=descriptor)

    def detach(self) -> int:
        descriptor = super().detach()
        self._count()
        return descriptor

    def __del__(self) -> None:
        finalize: Any = getattr(super(), "__del__", None)
        if finalize is not None:
            finalize()  # warns, and closes it
        self._count()

    def _count(self) -> None:
        load, self._load = self._load, None
        if load is not None:
            load.close_one()


class Connection:
    """A connection that this worker is to serve.

    It counts as open until its socket is closed: by :meth:`close`, by a transport that uses
    the socket, or by the garbage collector.

    Attributes:
        socket: The socket, which does not block.
    """

    __slots__ = ("__weakref__", "_detached", "socket")

    def __init__(self, load: Any, descriptor: int) -> None:
        self.socket: socket.socket = _CountedSocket(load, descriptor)
        self.socket.setblocking(False)
        self._detached = False

    @property
    def address(self) -> Any:
        """The address of the other side; ``None`` if it is gone by now."""
        return _address_of(self.socket)

    def detach(self) -> socket.socket:
        """Return the socket.  The caller must close it, or pass it to a transport."""
        self._detached = True
        return self.socket

    def close(self) -> None:
        """Close the socket, unless it was detached."""
        if not self._detached:
            self.socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _address_of(sock: socket.socket) -> Any:
    try:
        return sock.getpeername()
    except OSError:
        return None


def _peer_of(sock: socket.socket) -> str:
    """Return where a connection comes from; nothing if it is closed, or has no name."""
    match _address_of(sock):
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return ""


class DrainTime:
    """The time that a worker has from when it begins to drain.

    Args:
        times: What the cluster's options say.
    """

    def __init__(self, times: DrainTimes) -> None:
        self._loop = asyncio.get_running_loop()
        self._times = times
        self._began: float | None = None
        self._end_began: float | None = None
        self._others_serve = False
        self._bound: asyncio.Timeout | None = None

    @property
    def limit(self) -> float:
        """How many seconds it is, by what is known now."""
        return self._times.replaced if self._others_serve else self._times.at_end

    @property
    def applied(self) -> DrainLimit:
        """Which limit applies, by what is known now."""
        began = self._loop.time() if self._began is None else self._began
        others = self._others_serve
        return self._times.limit(began, self._end_began, others_serve=others)

    def begin(self) -> None:
        """Begin to drain."""
        self._began = self._loop.time()

    def others_serve(self) -> None:
        """Note that other workers go on serving."""
        if self._end_began is None:
            self._others_serve = True
            self._reschedule()

    def cluster_ends(self) -> None:
        """Note that the whole cluster ends, so that less time may be left."""
        if self._end_began is None:
            self._end_began = self._loop.time()
            self._reschedule()

    async def bound(self, awaited: Awaitable[object]) -> None:
        """Wait for *awaited*, but no longer than the time, which has begun."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self.applied.over_at) as self._bound:
                await awaited
        self._bound = None

    def _reschedule(self) -> None:
        if self._bound is not None and not self._bound.expired():
            self._bound.reschedule(self.applied.over_at)


class LinkChannel(Channel):
    """The channel of a link in its worker.

    It reads several times in a turn, and nothing while too much is unsent.  When the pool has sent
    its last frame, this end goes on sending.

    Attributes:
        sent: An event that is set whenever something was sent.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *args: Any, **options: Any
    ) -> None:
        self.sent = asyncio.Event()
        self._is_read = False
        super().__init__(loop, *args, **options)

    def read(self) -> int:
        size = 0
        for _ in range(_READS_PER_TURN):
            size = super().read()
            if self.unsent > _MOST_UNSENT:
                self.pause()
            if not size or self._paused or self._is_read:
                break
        return size

    def flush(self) -> None:
        super().flush()
        self.sent.set()
        if self._paused and self.unsent <= _MOST_UNSENT and not self._is_read:
            self.resume()

    def _discard_unsent(self) -> None:
        super()._discard_unsent()
        # The pool is gone.  The control channel notices that too, and acts on it.
        self.sent_bytes = self.put_bytes
        self.sent.set()

    def _end(self, error: ProtocolError | None) -> None:
        if error is not None:
            super()._end(error)
        elif not self._ended:
            self._loop.remove_reader(self._fd)
            self._silence_alarm.cancel()
            if not self._is_read:
                self._is_read = True
                self._on_end(None)


class MasterLink(Link):
    """The worker's end of the link, and the life of the worker: it serves, drains, and leaves.

    Args:
        control: The control channel; its job channel becomes the link.
        listeners: The sockets on which the worker accepts for itself, if it does.
        max_payload: The most bytes that a message may have.
        time: How long it may drain.
        log: Writes the worker's log, unless the master does.

    Attributes:
        time: As above.
        log: As above.
        draining: Whether it drains.
        ended: Whether nothing more comes from the pool.
        error: How the pool has broken the protocol.
        is_ready: Whether it has said that it is ready.
        idle: An event: whether no connection is open.
        returning: Whether connections may be given back.
        listeners: As above.
        load: Its connections.
        open_requests: Returns the open requests, the oldest first.
    """

    def __init__(
        self,
        control: Control,
        listeners: list[socket.socket],
        *,
        max_payload: int,
        time: DrainTime,
        log: Any,
    ) -> None:
        sock = DescriptorSocket(control.job_socket)
        loop = asyncio.get_running_loop()
        channel = LinkChannel(
            loop,
            sock,
            buffer=memoryview(bytearray(READ_SIZE)),
            max_payload=max_payload,
            on_frames=self._take,
            on_end=self._on_end,
        )
        super().__init__(sock, channel, Mail(float("inf")), "the pool")
        self._has_sent = channel.sent
        self.time, self.log, self.listeners = time, log, listeners
        self._thread = get_ident()
        self._control = control
        self.draining, self.ended, self.idle = (asyncio.Event() for _ in range(3))
        self.idle.set()
        self.error: ProtocolError | None = None
        self.is_ready = self.returning = self._retired = self._refusing = False
        self._is_worn = self._is_busy = self._is_over = self._thread_died = False
        self._acceptor = Acceptor(
            listeners,
            self._on_acceptable,
            lambda it: say.NOT_ACCEPTED.log(own_logger(), {}, why=it.strerror),
        )
        # The numbers of connections that need an acknowledgement, and their descriptors.
        self._came: Inbox[tuple[int, int]] = Inbox()
        self.load = Load(loop, self._tell_load)
        self.open_requests: Callable[[], list[Any]] = list

    # What the user's code asks for.

    def ready(self) -> None:
        if not self.is_ready:
            self._control.send_hello()
            self.is_ready = True

    def leave(self, reason: str, *, at_once: bool) -> None:
        if get_ident() != self._thread:
            again = partial(self.leave, reason, at_once=at_once)
            self._loop.call_soon_threadsafe(again)
            return
        if self._retired or self.draining.is_set():
            return
        self._retired = at_once
        if at_once:
            say.RETIRE_CALLED.log(own_logger(), {"reason": reason})
        elif not self._is_worn:
            say.REPLACEMENT_CALLED.log(own_logger(), {"reason": reason})
        self._is_worn = True
        # Sent each time: a cluster that gave up and recovers has forgotten who asked.
        packed = f"{reason}".encode(errors="replace")[:MAX_REASON]
        self._control.send(FrameKind.RETIRE, packed, 0, 0, 0 if at_once else _NOT_YET)
        if at_once:
            self.drain()

    async def connections(self) -> AsyncIterator[Connection]:
        if not self.draining.is_set():
            self._acceptor.listen()
        async for number, descriptor in self._came:
            # Without a variable, so that it is freed as soon as the user drops it.
            yield await self._open(number, descriptor)

    async def _open(self, number: int, descriptor: int) -> Connection:
        """Acknowledge a connection, which from now on is for the user's code alone."""
        connection = Connection(self.load, descriptor)
        if number:
            self.put(FrameKind.TAKEN, number)
            if self.channel.unsent:
                # Wait until it is sent: if this process died before, another worker would
                # get a connection from which something has been read.
                try:
                    await self.until_sent()
                except BaseException:
                    connection.close()
                    raise
        else:
            self.accept(wanted=not self._is_busy)
        return connection

    def accept(self, *, wanted: bool) -> None:
        """Accept connections, or leave them to other workers, where workers accept themselves."""
        self._is_busy = not wanted
        if self._acceptor.used and not self.draining.is_set():
            self._acceptor.listen(wanted=wanted)

    def report(self, figures: list[int]) -> None:
        """Tell the master what was counted of requests; the last report counts."""
        self.note(FrameKind.FIGURES, payload=pack_numbers(figures))

    async def until_sent(self, most: int = 0) -> None:
        """Wait until the pool's socket has taken all but so many bytes, or the pool is gone."""
        while self.channel.unsent > most and self.error is None:
            self._has_sent.clear()
            await self._has_sent.wait()

    def tell(self, wanted: int) -> str:
        """Return where the tasks wait, requests first, the oldest ahead; another thread calls this.

        Args:
            wanted: 0; else only the requests are wanted, as JSON.
        """
        if wanted:
            return self._tell_requests()
        lines = [COROUTINE]
        known = {it.task: f" for {it.title}" for it in self.open_requests()}
        tasks = [it for it in asyncio.all_tasks(self._loop) if it not in known]
        for task in islice((*known, *tasks), _MOST_TASKS):
            lines.append(f"  task {task.get_name()!r}{known.get(task, '')}:")
            frames = [*islice(waiting_frames(task.get_coro()), _DEEPEST)]
            lines += [f"  {line_of(frame)}" for frame in frames[::-1]]
        text = "\n".join(lines)
        return text[:_LONGEST]

    def _tell_requests(self) -> str:
        told = ""
        for request in self.open_requests():
            row = json.dumps(request.row())
            if len(told) + len(row) >= _MOST_OF_REQUESTS:
                break
            told += f",{row}" if told else row
        return f"[{told}]"

    # Its life.

    async def run(self, worker: Worker, target: Target) -> int:
        """Serve, drain, and return the status to leave with."""
        self._control.on_thread_death = self._mourn
        self._control.on_end_of_all = self.time.cluster_ends
        try:
            failure = await self._serve(worker, target)
            unasked = failure is None and not self.draining.is_set()
            self.drain()
            self._refuse_rest()
            if not unasked:  # more connections may come, and others can serve them
                await self.time.bound(self.ended.wait())
            await self.time.bound(self.idle.wait())
            if self.load.open and not self._is_over:
                self._tell_of_end()
            await self.time.bound(self._until_read())
        finally:
            self._control.on_thread_death = self._control.on_end_of_all = None
            self.close()
            if self.log is not None:
                self.log.end()
        if self.error is not None:
            raise self.error
        return int(failure is not None or self._thread_died)

    def drain(self) -> None:
        """Take no new connections except those that have been handed out already."""
        if not self.draining.is_set():
            self.time.begin()
            self.draining.set()
            # If a server accepts by itself, it has registered the sockets, and must close them.
            if self._acceptor.used:
                self._acceptor.close()
                for sock in self.listeners:
                    sock.close()
                self.listeners.clear()

    def close(self) -> None:
        """Close the link and all that has come on it."""
        self.drain()
        for sock in self.listeners:
            sock.close()
        self._refuse_rest()
        for _, descriptor in self._came.clear():
            os.close(descriptor)
        self.mail.close()
        self.shut()
        self.channel.close()

    async def _serve(self, worker: Worker, target: Target) -> BaseException | None:
        """Run the target to its end, or to the end of its time; return what it has raised."""
        failure: BaseException | None = None

        async def call() -> None:
            # SystemExit or KeyboardInterrupt would end the loop, if it left the task.
            nonlocal failure
            try:
                await target(worker)
            except BaseException as error:
                if not self._is_over:
                    failure = error

        task = self._loop.create_task(call(), name="asyncpool server")
        drains = self._loop.create_task(self.draining.wait(), name="asyncpool drain")
        await asyncio.wait({task, drains}, return_when=asyncio.FIRST_COMPLETED)
        drains.cancel()
        if self.error is not None:
            raise self.error  # there is no pool to drain for
        if not task.done():
            await self.time.bound(asyncio.wait({task}))
        if not task.done():
            self._tell_of_end()
            self._is_over = True
            task.cancel()
            await asyncio.wait({task}, timeout=_CLEAN_UP)
        elif failure is not None:
            if not self.is_ready:
                raise failure
            print_error(failure)
            self._control.report_failure("serve", failure)
        elif not self.is_ready and not self.draining.is_set():
            raise RuntimeError("serve() returned before it was ready")
        return failure

    def _tell_of_end(self) -> None:
        """Log what is cut off now, at the end of the time."""
        load, limit = self.load, self.time.applied
        extra: dict[str, object] = {"limit": limit.name, "seconds": limit.seconds}
        if not load.open:
            say.SERVE_CANCELLED.log(own_logger(), extra)
            return
        who = load.tell_who()
        extra |= {"open": load.open, "opened": load.opened}
        say.CONNECTIONS_CUT_OFF.log(own_logger(), extra, who=f": {who}" if who else "")
        load.cut_off()

    def _mourn(self) -> None:
        self._thread_died = True
        self._loop.call_soon_threadsafe(self.drain)

    async def _until_read(self) -> None:
        """Wait until the pool has read all, or is gone.

        After the end of this process the pool reads all the rest in one go, even if it has few
        descriptors left.  So the wait comes first.
        """
        await self.until_sent()
        while self._totals and self.error is None:
            self.send_totals()
            await self.until_sent()
        while queued(self._socket):  # noqa: ASYNC110 - no event
            await asyncio.sleep(_LOOK_AGAIN)

    # What comes from the pool.

    def _take(self, frames: list[Frame]) -> None:
        try:
            self.on_frames(frames)
        except ProtocolError as error:
            self.channel.ignore()
            self._on_end(error)

    def on_answer(self, number: int, *, taken: bool, users: bool) -> None:
        """Leave it to :meth:`ship`; connections are not answered."""

    def on_connection(self, number: int, fd: int | None) -> None:
        if fd is None:
            self._acceptor.tell_want(errno.EMFILE)
            self.put(FrameKind.REFUSED, number)
        elif self._refusing:
            self._refuse(number, fd)
        else:
            self._came.put((number, fd))

    def on_frame(self, frame: Frame) -> None:
        if frame.kind is not FrameKind.RETURN:
            raise ProtocolError(f"the pool sent {frame.kind.name}")
        self.returning = True
        self.time.others_serve()
        if self._refusing:
            self._refuse_rest()

    def _on_end(self, error: ProtocolError | None) -> None:
        """Note that nothing more comes from the pool."""
        self.error = error
        acceptor = self._acceptor
        if error is None and not self.returning and not self.draining.is_set():
            # What waits in the kernel's queue, since the whole cluster ends.
            for descriptor in acceptor.rest() if acceptor.used else ():
                self._came.put((0, descriptor))
        self._came.end()
        self.mail.end()
        self.ended.set()
        self._has_sent.set()
        self.end()
        self.drain()

    def _on_acceptable(self) -> None:
        descriptor = self._acceptor.accept()
        if descriptor is not None:
            self._came.put((0, descriptor))
        if len(self._came) >= _MOST_WAITING:
            self._acceptor.listen(wanted=False)

    def _refuse_rest(self) -> None:
        """Give back what nobody here has taken, and what still comes."""
        self._refusing = True
        for number, descriptor in self._came.clear():
            self._refuse(number, descriptor)

    def _refuse(self, number: int, descriptor: int) -> None:
        if number:
            os.close(descriptor)
            self.put(FrameKind.REFUSED, number)
        elif self.returning:
            self.hand(descriptor)
        else:  # no other worker can have it now, but perhaps one can soon
            self._came.put((number, descriptor))

    def _tell_load(self) -> None:
        load = self.load
        if load.open:
            self.idle.clear()
        else:
            self.idle.set()
        counts = pack_numbers((load.opened, load.closed, load.cut))
        self.note(FrameKind.LOAD, load.lost, counts)


def serve(runner: JobRunner) -> int:
    """Be a worker of a cluster until it is drained.

    Args:
        runner: Has the event loop, and a configuration with the pickled ``(target, spread,
            drain_timeouts, slot, generation, broadcasts, log)``.  With that came the descriptors of
            the log and of the sockets to listen on.  Its job channel becomes the link.

    Returns:
        The status to leave with: 1 if an exception was not caught.

    Raises:
        BaseException: What has kept it from becoming ready; the pool was told.
    """
    config, control = runner.config, runner.control
    assert config.main is not None
    for name in _MASTERS:
        os.environ.pop(name, None)
    target, spread, drain_timeouts, slot, generation, broadcasts, log = pickle.loads(
        config.main[1]
    )
    link: MasterLink | None = None

    async def live() -> int:
        nonlocal link
        if writer is not None:
            whose = {"pool": log[1], "slot": slot, "generation": generation}
            writer.begin(log_fd, control, whose)
        link = MasterLink(
            control,
            listeners,
            max_payload=config.max_payload,
            time=DrainTime(DrainTimes(*drain_timeouts)),
            log=writer,
        )
        runner.server_stacks = link.tell
        for payload in broadcasts:
            link.mail.messages.put((None, payload))
        return await link.run(Worker(slot, generation, link), served)

    try:
        served, handed = _load(target), iter(posix.HANDED)
        log_fd = None if log is None else next(handed)
        # If it was lost, the master writes the log.  To unpickle it imports something.
        writer = pickle.loads(log[0]) if log and log_fd is not None else None
        listeners = _listeners(handed, spread)
        return runner.run(live())  # type: ignore[no-any-return]
    except BaseException as error:
        control.report_failure("serve", error)
        if link is not None and link.is_ready:  # else it is a failed start
            print_error(error)
        raise


def find_object(name: str) -> Any:
    """Import the object that ``package.module:object`` names.

    Raises:
        ValueError: If *name* does not have that form.
        AttributeError: If the module has no such object.
        Exception: Whatever the module raises when it is imported.
    """
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise ValueError(
            f"{name!r} does not name an object: write package.module:object"
        )
    return import_named(name)


def _load(target: bytes | str) -> Target:
    found = find_object(target) if isinstance(target, str) else pickle.loads(target)
    if not callable(found):
        raise TypeError(f"{target!r} is not a function, but {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _listeners(handed: Iterator[int | None], spread: str) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    for descriptor in handed:
        if descriptor is None:
            text = "there is no descriptor left for a socket to listen on"
            raise OSError(errno.EMFILE, text)
        listeners.append(socket.socket(fileno=descriptor))
        listeners[-1].setblocking(False)
    if spread == "shared" and not listeners:
        raise BrokenPipeError("the pool has ended before this worker could listen")
    return listeners


def queued(sock: socket.socket, which: int = termios.TIOCOUTQ) -> int:
    """Return how many bytes the other side has not read, or this one; 0 if that is not known."""
    try:
        number = fcntl.ioctl(sock.fileno(), which, bytes(4))
    except (OSError, ValueError):  # it is closed
        return 0
    return int.from_bytes(number, sys.byteorder)
