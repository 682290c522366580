"""A cluster in operation: signals, the control socket, the service manager, an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncpool._cluster import log_messages as say
from asyncpool._core import log_messages
from asyncpool._engine.life_log import (
    NamedLog,
    count_workers,
    describe_roll,
    roll_trouble,
)
from asyncpool._observe.control.protocol import Request, fields_of
from asyncpool._observe.control.server import ControlSocket, open_control
from asyncpool._observe.control.watch import watching
from asyncpool.cluster._stats import ClusterStats
from asyncpool.enums import RunState
from asyncpool.errors import (
    PoolBrokenError,
    PoolClosedError,
    ProtocolError,
    ResizeError,
    RollInProgressError,
)
from asyncpool.events import RollResult

if TYPE_CHECKING:
    from asyncpool.cluster._master import Cluster


# Exit codes.  A second signal gives 128 and its number, as a shell does.
STOPPED = 0
GAVE_UP = 3

_STATUS_EVERY = 5.0  # s


def status_line(stats: ClusterStats) -> str:
    """Return what the service manager shows of a cluster."""
    ready = sum(it.ready for it in stats.slots)
    return (
        f"{ready} of {stats.workers} workers, {stats.handed} connections, "
        f"{stats.restarts} restarts"
    )


class Operation:
    """Lets a cluster be run by signals, by commands, and by a service manager.

    Args:
        cluster: The cluster; it is started and closed here.
        control: The name or path of its control socket; its own name by default,
            ``""`` for none.
        on_ready: Called when the first worker is ready.
        is_last: Asked at the end, whether this process ends now, too: signals that come
            later change nothing then.

    Attributes:
        control_path: Where the control socket is; ``None`` if there is none.
        which: What commands are told to find it.
        broken: Why the cluster has given up, if it has.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        control: str | None = None,
        on_ready: Callable[[], object] = lambda: None,
        is_last: Callable[[], bool] = lambda: False,
    ) -> None:
        self.control_path: str | None = None
        self.which = ""
        self.broken: PoolBrokenError | None = None
        self._cluster = cluster
        self._name = cluster.name
        self._log = NamedLog(cluster.name, f"cluster {cluster.name}")
        self._control = control
        self._on_ready = on_ready
        self._is_last = is_last
        self._notifier = Notifier({})
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._stops: list[int] = []
        self._wanted: int | None = None
        self._reloading = False
        self._reload_again = ""  # who has asked for another one meanwhile
        self._is_over = False

    async def run(self) -> int:
        """Serve until somebody asks for an end, and return the exit code.

        Raises:
            OSError: If the cluster cannot listen, or a control socket that was asked
                for cannot be made, or its name is another one's.
            ValueError: If an address makes no sense, or the name of the control socket.
            RuntimeError: If this is not the main thread.

        Cancellation:
            Ends the cluster at once.
        """
        self._notifier = Notifier()
        control = None
        orders: dict[int, Callable[[], object]] = {
            signal.SIGTERM: partial(self.stop, signal.SIGTERM),
            signal.SIGINT: partial(self.stop, signal.SIGINT),
            signal.SIGHUP: partial(self.reload_soon, "SIGHUP"),
            signal.SIGTTIN: partial(self._resize_by, 1, "SIGTTIN"),
            signal.SIGTTOU: partial(self._resize_by, -1, "SIGTTOU"),
            signal.SIGUSR1: partial(self._soon, self._dump),
            signal.SIGQUIT: partial(self._stop_now, "SIGQUIT"),
        }
        try:
            with obeyed(
                orders,
                refuse=self._refuse,
                is_over=lambda: self._is_over,
                is_last=self._is_last,
            ):
                # First: a retry for the address should not tell of a name that is taken, too.
                await self._cluster._open_listeners()  # noqa: SLF001 - the cluster's own operation
                control = await self._open_control()
                await self._serve()
        except BaseException:
            await self._cluster.close(timeout=0)
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            if control is not None:
                await control.close()
            self._notifier.close()
        if self.broken is not None:
            return GAVE_UP
        # A command that cut the drain short, unlike a signal, is no failure: it got what it wanted.
        cut = self._stops[-1] if len(self._stops) > 1 else 0
        return 128 + cut if cut else STOPPED

    def stop(self, number: int = 0, why: str = "") -> None:
        """Drain and end; when it is asked for again, end at once.

        Args:
            number: The signal that asks for it, 0 if none does.
            why: What else asks for it, for the log, which is not told otherwise.
        """
        self._stops.append(number)
        why = name_of(number) if number else why
        how, first = "it ends at once", len(self._stops) == 1
        if first:
            how = f"workers finish their connections; when asked again, {how}"
            self._notifier.tell("draining", "STOPPING=1")
        if why:
            self._log.now(say.STOP_ASKED, {"by": why}, how=how)
        self._closing.add(self._soon(self._close, None if first else 0.0))

    def _stop_now(self, why: str) -> None:
        """End at once, which is no failure."""
        if len(self._stops) > 1:
            return
        if not self._stops:
            self._stops.append(0)  # the second cuts the drain short
            self._notifier.tell("draining", "STOPPING=1")
        self.stop(why=why)

    def _refuse(self, number: int) -> None:
        self._log.now(say.SIGNAL_REFUSED, {"signal": name_of(number)})

    def reload_soon(self, why: str = "its program") -> None:
        """Replace the workers; if a reload is in progress, once more after it.

        Args:
            why: What asks for it, for the log.
        """
        if self._reloading:
            self._reload_again = why
        elif not self._stops:
            self._soon(self._reload, why)

    async def _serve(self) -> None:
        """Start the cluster, and wait for its end."""
        try:
            await self._cluster.start()
            if not self._stops:
                self._notifier.tell(status_line(self._cluster.stats()), "READY=1")
                self._on_ready()
                if self._notifier.listens:
                    self._soon(self._beat)
            await self._cluster.wait()
        except PoolClosedError:
            if not self._stops:
                raise
        except PoolBrokenError as error:
            self.broken = error
            self._notifier.tell("draining", "STOPPING=1")
            await self._cluster.close()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._cluster.close(timeout)
        self._is_over = True

    async def _reload(self, why: str) -> RollResult:
        """Replace the workers, and tell of it; then do so again if that was asked for meanwhile."""
        if self._reloading:
            raise RollInProgressError("a reload is under way already")
        self._reloading, self._reload_again = True, ""
        self._notifier.reloading()
        self._log.now(say.RELOAD_ASKED, {"by": why})
        try:
            result = await self._cluster.reload()
        finally:
            self._reloading = False
            if not self._stops:
                self._notifier.tell(status_line(self._cluster.stats()), "READY=1")
        if self._reload_again:
            self.reload_soon(self._reload_again)
        return result

    def _resize_by(self, change: int, by: str) -> None:
        stats = self._cluster.stats()
        workers = max(1, (self._wanted or stats.workers) + change)
        self._note_wanted(workers, by)
        self._soon(self._cluster.resize, workers)

    def _note_wanted(self, workers: int, by: str) -> None:
        self._wanted = workers
        extra = {"by": by, "workers": workers}
        self._log.now(say.RESIZE_ASKED, extra, number=count_workers(workers))

    async def _dump(self) -> None:
        """Tell where all workers are."""
        for worker, text in sorted((await self._cluster.stacks()).items()):
            self._log.now(say.WORKER_STACKS, {"slot": worker}, stack=text.rstrip())

    async def _beat(self) -> None:
        """Tell the service manager how it goes, and its watchdog that it goes at all."""
        watchdog = watchdog_interval()
        while True:
            await asyncio.sleep(min(_STATUS_EVERY, watchdog or _STATUS_EVERY))
            stats = self._cluster.stats()
            # Busy workers count: requests that take long are no reason to kill them all.
            serves = stats.state is RunState.RUNNING and any(
                it.ready or it.state == "busy" for it in stats.slots
            )
            if watchdog is not None and (serves or self._stops):
                self._notifier.tell("", "WATCHDOG=1")
            if not self._stops and not self._reloading:
                self._notifier.tell(status_line(stats))

    def _soon(
        self, action: Callable[..., Coroutine[Any, Any, object]], *args: Any
    ) -> asyncio.Task[None]:
        """Do something beside serving; what goes wrong is logged."""

        # Not given a coroutine: a task that is cancelled before it begins would never await it.
        async def act() -> None:
            try:
                await action(*args)
            except (PoolClosedError, ResizeError, RollInProgressError):
                pass  # it has ended meanwhile, or has logged that, or that one is told of
            except Exception as error:  # noqa: BLE001 - it is logged, and the cluster serves on
                self._log.now(say.ORDER_FAILED, error=error)

        name = getattr(action, "__name__", "task").strip("_")
        task = asyncio.create_task(act(), name=f"asyncpool serve: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # What clients of the control socket ask for.

    async def _open_control(self) -> ControlSocket | None:
        if self._control == "":
            return None
        watch = watching(self._cluster, self._status)
        control = await open_control(
            "cluster", self._name, self._control, self._answer, watch
        )
        if control is not None:
            self._name, self.which = control.name, control.which
            self.control_path = control.path
        return control

    async def _answer(self, request: Request) -> dict[str, Any]:
        """Do what a client asks for, and return what it is told.

        Raises:
            ProtocolError: If a cluster has no such action.
        """
        slot, text = request.slot, ""
        match request.action:
            case "status":
                return self._status()
            case "stacks":
                if request.job is not None:
                    raise ProtocolError("a server has no jobs: name a slot, or none")
                found = await self._cluster.stacks()
                wanted = {it: text for it, text in found.items() if slot in {None, it}}
                return {"stacks": wanted}
            case "requests":
                service = self._cluster._service()  # noqa: SLF001 - the cluster's own operation
                return {"requests": await service.open_requests()}
            case "kill" if slot is not None:
                self._cluster.kill(slot)
                text = f"the worker in slot {slot} was killed"
            case "recycle" if slot is not None:
                self._cluster.retire(slot)
                text = f"the worker in slot {slot} is being replaced"
            case "reload" | "kill" | "recycle":
                result = await self._reload("a command")
                return {
                    "replaced": result.replaced,
                    "filled": result.filled,
                    "reason": "" if result.ok else roll_trouble(result),
                    "text": describe_roll(result),
                }
            case "resize" | "stop" if request.workers is not None:
                before = self._cluster.stats().workers
                self._note_wanted(request.workers, "a command")
                await self._cluster.resize(request.workers)
                text = f"{count_workers(request.workers)} now, {before} before"
                return {"workers": request.workers, "text": text}
            case "resize" | "stop":
                if request.now:
                    self._stop_now("a command")
                elif not self._stops:
                    self.stop(why="a command")
                return {"pid": os.getpid(), "name": self._name}
            case "profile":
                raise ProtocolError(
                    "a profile is of the jobs of a pool, and a server has none: 'asyncpool "
                    "stacks' shows where its workers are now"
                )
            case _:
                raise ProtocolError(f"a server has no action {request.action!r}")
        # The others have records of their own.
        self._log.now(log_messages.COMMANDED, done=text)
        return {"text": text}

    def _status(self) -> dict[str, Any]:
        return {
            "kind": "cluster",
            "name": self._name,
            "which": self.which,
            "pid": os.getpid(),
            **fields_of(self._cluster.stats()),
        }


# The signals that a cluster obeys.

# Signals that a cluster leaves alone: nobody can handle them, they report a fault in this process,
# they stop or continue it, or they are ignored by default.  Not every system has all of them.
_LEFT_ALONE = (
    *("SIGKILL", "SIGSTOP"),
    *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"),
    *("SIGTSTP", "SIGCONT"),
    *("SIGCHLD", "SIGWINCH", "SIGURG", "SIGINFO"),
)


def name_of(number: int) -> str:
    """Return the name of a signal; only two of the real-time ones have names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        if _is_real_time(number):
            return f"SIGRTMIN+{number - signal.SIGRTMIN}"
        return f"signal {number}"


def _is_real_time(number: int) -> bool:
    first = getattr(signal, "SIGRTMIN", None)
    return first is not None and first <= number <= signal.SIGRTMAX


@contextlib.contextmanager
def obeyed(
    orders: Mapping[int, Callable[[], object]],
    *,
    refuse: Callable[[int], object],
    is_over: Callable[[], bool] = lambda: False,
    is_last: Callable[[], bool] = lambda: False,
) -> Generator[None]:
    """Obey signals while the context lasts.

    A signal stays ignored if it was ignored when this process was started.  A shell does
    that with ``SIGINT`` for what runs in the background, and nohup with ``SIGHUP``.

    All orders are given in the loop.

    Args:
        orders: What is called at each signal.
        refuse: Called with the number of a signal that means nothing here, and that would end the
            process without a word by default.
        is_over: Returns whether an order comes too late, and is not given.
        is_last: Called at the end, unless an exception ends the context; returns whether
            this process ends now as well.  Then signals are ignored, so that none of them
            changes how it ends.

    Raises:
        RuntimeError: If this is not the main thread: only that thread gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("signals reach the main thread only: run the cluster there")
    loop = asyncio.get_running_loop()
    every_order = dict(orders)
    # A signal with a handler means something to the program that the cluster is a part of.
    every: set[int] = {*signal.valid_signals()}
    left_alone = {getattr(signal, name, None) for name in _LEFT_ALONE}
    for number in every - left_alone - every_order.keys():
        # One without a name that is not real-time is for the system's libraries.
        is_known = isinstance(number, signal.Signals) or _is_real_time(number)
        if is_known and signal.getsignal(number) is signal.SIG_DFL:
            every_order[number] = partial(refuse, number)

    def give(order: Callable[[], object]) -> None:
        if not is_over():
            order()

    before: list[tuple[int, Any]] = []
    ignore = False
    try:
        for number, order in every_order.items():
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN:
                loop.add_signal_handler(number, give, order)
                before.append((number, handler))
        yield
        ignore = is_last()
    finally:
        with _held_back([number for number, _ in before]):
            for number, handler in before:
                loop.remove_signal_handler(number)
                if ignore:
                    signal.signal(number, signal.SIG_IGN)
                # None is a handler in C code, which was not replaced.  Of others the loop has set
                # the default action, and there may have been another one.
                elif handler is not None:
                    signal.signal(number, handler)


@contextlib.contextmanager
def _held_back(numbers: Iterable[int]) -> Generator[None]:
    """Hold signals back while their default action is set for a moment."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# The service manager: systemd, or another one that has set ``NOTIFY_SOCKET`` (sd_notify).


class Notifier:
    """Sends states to the service manager; if there is none, it does nothing.

    It never waits, and drops what the manager does not take: that must not make a service fail.

    Args:
        environment: Where ``NOTIFY_SOCKET`` is looked up.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # "@" stands for the NUL of an abstract socket.  Other kinds ("vsock:") are not supported.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._sock: socket.socket | None = None
        if address.startswith(("/", "@")):
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sock.setblocking(False)

    @property
    def listens(self) -> bool:
        """Whether there is a manager to tell."""
        return self._sock is not None

    def tell(self, status: str, *states: str) -> None:
        """Say what ``systemctl status`` shows, if it is not empty, and states such as ``READY=1``."""
        lines = [f"STATUS={' '.join(status.split())}"] * bool(status)
        if self._sock is not None:
            with contextlib.suppress(OSError):
                text = "\n".join((*states, *lines))
                self._sock.sendto(text.encode(), self._address)

    def reloading(self) -> None:
        """Say that the service loads its code anew; ``READY=1`` ends that."""
        # systemd compares the time stamp with its own, to tell this reload from an earlier one.
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.tell("reloading", "RELOADING=1", f"MONOTONIC_USEC={now}")

    def close(self) -> None:
        """Close the socket."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def watchdog_interval(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return the seconds between two signs of life for the watchdog; ``None`` without one.

    They are half of what the watchdog waits for (``WATCHDOG_USEC``), as systemd advises.
    """
    owner = environment.get("WATCHDOG_PID", "")
    if owner and owner != str(os.getpid()):
        return None
    try:
        microseconds = int(environment.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return microseconds / 2e6 if microseconds > 0 else None
