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
from typing import TYPE_CHECKING, Any

from asyncpool._cluster.acceptor import Acceptor, Want
from asyncpool._cluster.connections import Connection, Load
from asyncpool._cluster.link import (
    HandleTag,
    Inbox,
    Link,
    Mail,
    Received,
    check_message,
    message_of,
    thing_of,
)
from asyncpool._cluster.rules import MAX_REQUESTS, DrainLimit, drain_limit
from asyncpool._engine.channel import READ_SIZE, Channel, DescriptorSocket
from asyncpool._wire import log_records as say
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.messages import COROUTINE, MAX_REASON, pack_numbers
from asyncpool._wire.posix import check_beside, file_descriptor, socket_descriptor
from asyncpool._wire.records import import_named
from asyncpool._worker.channels import own_logger, print_error
from asyncpool._worker.stacks import line_of, waiting_frames
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
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

# Seconds in which code that is cancelled at the end of its time may clean up.  The pool ends the
# process after a second, so it is less.
_CLEAN_UP = 0.5

# How many accepted connections wait here for the user's code.  The others wait in the backlog.
_MOST_WAITING = 16

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
        self._link.hand(os.dup(sock.fileno()), HandleTag.CONNECTION)
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
        await self._send(socket_descriptor(sock), value, "socket")

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
        await self._send(file_descriptor(file), value, "file")

    def incoming_files(self) -> AsyncIterator[ReceivedFile]:
        """Yield the files of ``Cluster.send_file()`` to this worker, until it drains.

        They are raw binary files.  The attribute ``value`` of each is the object that was
        sent with it.
        """
        tell = partial(_tell_dropped, "the value of a file")
        return Received(self._link.mail.files, thing_of, tell)

    async def _send(self, descriptor: int, value: object, what: str) -> None:
        payload = b"" if value is None else check_beside(pickle.dumps(value, 5))
        if self._link.ended.is_set():
            raise BrokenPipeError(f"the pool takes no more {what}s")
        if not await self._link.ship(os.dup(descriptor), payload):
            raise OSError(f"the pool could not take the {what}")


def _tell_dropped(what: str, _: object, error: Exception) -> None:
    say.VALUE_UNREADABLE.log(own_logger(), {}, error=error, what=what)


class DrainTime:
    """The time that a worker has from when it begins to drain.

    Args:
        at_end: Seconds, if the whole cluster ends.
        replaced: Seconds, if other workers go on serving.
    """

    def __init__(self, at_end: float, replaced: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._at_end, self._replaced = at_end, replaced
        self._began: float | None = None
        self._end_began: float | None = None
        self._others_serve = False
        self._bound: asyncio.Timeout | None = None

    @property
    def limit(self) -> float:
        """How many seconds it is, by what is known now."""
        return self._replaced if self._others_serve else self._at_end

    @property
    def applied(self) -> DrainLimit:
        """Which limit applies, by what is known now."""
        return drain_limit(
            self._loop.time() if self._began is None else self._began,
            self._end_began,
            others_serve=self._others_serve,
            at_end=self._at_end,
            replaced=self._replaced,
        )

    def begin(self) -> None:
        """Begin to drain, once."""
        if self._began is None:
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
        accepts: Whether the worker accepts for itself, on sockets that come first.
        max_payload: The most bytes that a message may have.
        time: How long it may drain.
        log: Writes the worker's log by itself, if there is one; its descriptor comes first.
        whose: What each record of that log has of the worker.

    Attributes:
        time: As above.
        log: As above; ``None`` if the master writes the log.
        draining: Whether it drains.
        ended: Whether nothing more comes from the pool.
        error: How the pool has broken the protocol.
        is_ready: Whether it has said that it is ready.
        idle: An event: whether no connection is open.
        returning: Whether connections may be given back.
        listeners: The sockets on which it accepts.
        load: Its connections.
        open_requests: Returns the open requests, the oldest first.
    """

    def __init__(
        self,
        control: Control,
        *,
        accepts: bool,
        max_payload: int,
        time: DrainTime,
        log: Any = None,
        whose: dict[str, object] | None = None,
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
        self.time, self.log, self._whose = time, log, whose
        self._thread = get_ident()
        self._control = control
        self.draining, self.ended, self.idle = (asyncio.Event() for _ in range(3))
        self.idle.set()
        self.error: ProtocolError | None = None
        self.is_ready = self.returning = self._retired = self._refusing = False
        self._is_worn = self._is_busy = self._is_over = self._thread_died = False
        self.listeners: list[socket.socket] = []
        self._logging = asyncio.Event()
        self._listening: asyncio.Future[None] = loop.create_future()
        if not accepts:
            self._listening.set_result(None)
        self._acceptor: Acceptor | None = None
        self._want = Want(
            lambda it: say.NOT_ACCEPTED.log(own_logger(), {}, why=it.strerror)
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
        if self._acceptor is not None and not self.draining.is_set():
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
        acceptor = self._acceptor
        if acceptor is not None and acceptor.used and not self.draining.is_set():
            acceptor.listen(wanted=wanted)

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
        rows: list[str] = []
        for request in self.open_requests():
            rows.append(json.dumps(request.row()))
            if sum(map(len, rows)) + len(rows) > MAX_REQUESTS:
                rows.pop()
                break
        return f"[{','.join(rows)}]"

    # Its life.

    async def run(self, worker: Worker, target: Target) -> int:
        """Serve, drain, and return the status to leave with."""
        self._control.on_thread_death = self._mourn
        self._control.on_end_of_all = self.time.cluster_ends
        try:
            if self.log is not None:
                await self._logging.wait()
            await self._listening
            if self.listeners:
                self._acceptor = Acceptor(
                    self.listeners, self._on_acceptable, self._want
                )
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
            if self._acceptor is not None and self._acceptor.used:
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
        while _unread(self._socket):  # noqa: ASYNC110 - no event
            await asyncio.sleep(_LOOK_AGAIN)

    # What comes from the pool.

    def _take(self, frames: list[Frame]) -> None:
        try:
            self.on_frames(frames)
        except ProtocolError as error:
            self.channel.ignore()
            self._on_end(error)

    def reads(self, *, early: bool) -> bool:  # noqa: ARG002 - the pool reads as long as it lives
        return not self.ended.is_set() or self._has_room

    def on_answer(self, number: int, *, taken: bool, users: bool) -> None:
        """Leave it to :meth:`ship`; connections are not answered."""

    def on_connection(self, number: int, fd: int | None) -> None:
        if fd is None:
            self._want.tell(errno.EMFILE)
            self.put(FrameKind.REFUSED, number)
        elif self._refusing:
            self._refuse(number, fd)
        else:
            self._came.put((number, fd))

    def on_log(self, number: int, fd: int | None) -> None:  # noqa: ARG002 - not answered
        if fd is None or self.log is None:  # the master writes it, as it does anyway
            self.log = None
        else:
            self.log.begin(fd, self._control, self._whose)
        self._logging.set()

    def on_frame(self, frame: Frame) -> None:
        if frame.kind is FrameKind.LISTEN:
            self._listen_on(self.descriptor(), frame.number)
        elif frame.kind is FrameKind.RETURN:
            self.returning = True
            self.time.others_serve()
            if self._refusing:
                self._refuse_rest()
        else:
            raise ProtocolError(f"the pool sent {frame.kind.name}")

    def _listen_on(self, descriptor: int | None, count: int) -> None:
        if self._listening.done():
            if descriptor is not None:
                os.close(descriptor)
            if self._listening.exception() is None:
                raise ProtocolError("the pool sent LISTEN too late")
        elif descriptor is None:
            text = "there is no descriptor left for a socket to listen on"
            self._listening.set_exception(OSError(errno.EMFILE, text))
        else:
            sock = socket.socket(fileno=descriptor)
            sock.setblocking(False)
            self.listeners.append(sock)
            if len(self.listeners) == count:
                self._listening.set_result(None)

    def _on_end(self, error: ProtocolError | None) -> None:
        """Note that nothing more comes from the pool."""
        self.error = error
        if not self._listening.done():
            text = "the pool has ended before this worker could listen"
            self._listening.set_exception(BrokenPipeError(text))
        acceptor = self._acceptor
        if error is None and not self.returning and not self.draining.is_set():
            # What waits in the kernel's queue, since the whole cluster ends.
            for descriptor in acceptor.rest() if acceptor and acceptor.used else ():
                self._came.put((0, descriptor))
        if not self._logging.is_set():
            self.log = None
            self._logging.set()
        self._came.end()
        self.mail.end()
        self.ended.set()
        self._room.set()
        self._has_sent.set()
        self.end()
        self.drain()

    def _on_acceptable(self) -> None:
        assert self._acceptor is not None
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
            self.hand(descriptor, HandleTag.CONNECTION)
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
            drain_timeouts, slot, generation, broadcasts, log)``.  Its job channel becomes the link.

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
        link = MasterLink(
            control,
            accepts=spread != "handoff",
            max_payload=config.max_payload,
            time=DrainTime(*drain_timeouts),
            log=writer,
            whose=log and {"pool": log[1], "slot": slot, "generation": generation},
        )
        runner.server_stacks = link.tell
        for payload in broadcasts:
            link.mail.messages.put((None, payload))
        return await link.run(Worker(slot, generation, link), served)

    try:
        served = _load(target)
        writer = None if log is None else pickle.loads(log[0])  # imports something
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


def _unread(sock: socket.socket) -> int:
    """Return how many bytes the other side has not read; 0 if that is not known."""
    try:
        unread = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(unread, sys.byteorder)
