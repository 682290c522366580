"""Functions that run in workers.  Nothing heavy is imported here: workers do too."""

from __future__ import annotations

import atexit
import ctypes
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar

import asyncpool
from asyncpool._wire.posix import INTERRUPT_SIGNAL

TYPE_CHECKING = False  # see asyncpool/_dataclass.py
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__: list[str] = []


def square(number: int) -> int:
    return number * number


def pid() -> int:
    return os.getpid()


async def pid_later() -> int:
    return os.getpid()


def pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def pid_for(_item: object) -> int:
    return os.getpid()


def call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def take(*args: object, **kwargs: object) -> int:
    return len(args) + len(kwargs)


def attempt() -> tuple[int, int]:
    job = asyncpool.current_job()
    return job.id, job.attempt


def limits() -> tuple[float | None, float | None]:
    """Return until when this attempt may run, and how many seconds that are."""
    deadline = asyncpool.current_job().deadline
    return deadline, None if deadline is None else deadline - time.monotonic()


def last_details() -> Any:
    return asyncpool.current_job().last_details


def size_of_details() -> int:
    return len(last_details())


# What a worker keeps.


def fill_state() -> None:
    asyncpool.worker_state().count = 0


def count_state() -> int:
    state = asyncpool.worker_state()
    state.count += 1
    return int(state.count)


def state() -> dict[str, Any]:
    return vars(asyncpool.worker_state())


def stay(seconds: float) -> tuple[float, float]:
    """Return from when to when this ran, by the clock that all processes have."""
    begun = time.monotonic()
    time.sleep(seconds)
    return begun, time.monotonic()


# At the gate.


def arrive(gate: str, word: str = "") -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    knock(sock, gate, word)
    return sock


def knock(sock: socket.socket, gate: str, word: str) -> None:
    """Arrive with *sock*; what this job is ended by may come as soon as it has."""
    sock.connect(gate)
    sock.sendall(f"{word} {os.getpid()}\n".encode())


def wait_at(gate: str, word: str = "") -> str:
    """Wait to be let go, and return the answer."""
    with arrive(gate, word) as sock:
        return sock.recv(4096).decode()


def wait_at_exit(gate: str) -> None:
    """Have this process wait when it ends."""
    atexit.register(wait_at, gate, "exit")


def wait_behind(gate: str, name: str) -> None:
    """Leave a thread behind that waits there, and is no daemon."""
    thread = threading.Thread(target=wait_at, args=(gate,), name=name, daemon=False)
    thread.start()


def keep_thread_pool() -> int:
    """Leave a thread pool behind, as a module may that has one; its threads are idle."""
    from concurrent.futures import ThreadPoolExecutor

    executor = ThreadPoolExecutor(1)
    asyncpool.worker_state().executor = executor
    return executor.submit(pow, 2, 3).result()


def pass_by(gate: str, word: str = "") -> None:
    arrive(gate, word).close()


class StopAtImport:
    """What imports pass by; that of one module waits until its job is to end."""

    def __init__(self, gate: str, name: str) -> None:
        self._gate = gate
        self._name = name

    def find_spec(self, name: str, *_: object) -> None:
        if name != self._name:
            return
        sys.meta_path.remove(self)
        heard: Any = signal.getsignal(INTERRUPT_SIGNAL)
        asked, ask = os.pipe()

        def hear(*args: Any) -> None:
            os.write(ask, b".")
            heard(*args)

        signal.signal(INTERRUPT_SIGNAL, hear)
        try:
            pass_by(self._gate, "importing")
            os.read(asked, 1)
        finally:
            signal.signal(INTERRUPT_SIGNAL, heard)
            os.close(asked)
            os.close(ask)


def stop_at_import(gate: str, name: str) -> None:
    sys.meta_path.insert(0, StopAtImport(gate, name))


async def greet(name: str) -> str:
    """Need no module."""
    return f"hello {name}"


# Short as a rule, so that several of them are sent ahead to a worker.


def nap(microseconds: int) -> int:
    """Wait in C, which does not begin again after a signal; return -1 then."""
    return int(ctypes.CDLL(None).usleep(microseconds))


def perhaps_wait(gate: str = "") -> int:
    """Wait at a gate if there is one; return the pid."""
    if gate:
        wait_at(gate)
    return os.getpid()


def perhaps_die(number: int, *, how: str = "") -> int:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(0)
    return number


def sign(path: str, number: int, *_baggage: object) -> int:
    """Leave a line that says that this ran."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{number}\n".encode())
    os.close(fd)
    return number


def wait_in_every_attempt(gate: str) -> str:
    """Die when the answer is "die"; else return it."""
    answer = wait_at(gate, f"attempt {asyncpool.current_job().attempt}")
    if answer == "die":
        os._exit(3)
    return answer


def clean_up_at(gate: str) -> None:
    """Wait for ever; when that ends, say what has ended it, and wait to be let go."""
    try:
        with arrive(gate, "work"):
            time.sleep(3600)
    except BaseException as error:
        wait_at(gate, type(error).__name__)
        raise


# Ways to be busy.


def compute(gate: str, word: str) -> NoReturn:
    with socket.socket(socket.AF_UNIX) as sock:
        knock(sock, gate, word)
        while True:
            pass


def sleep(gate: str, word: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        knock(sock, gate, word)
        time.sleep(3600)


def swallow(gate: str, word: str) -> None:
    """Go on though it is asked to end."""
    with socket.socket(socket.AF_UNIX) as sock:
        # It can be asked to end as soon as it has arrived, and is asked once.
        with suppress(BaseException):
            knock(sock, gate, word)
            time.sleep(3600)
        time.sleep(3600)


def hold_the_gil(gate: str, word: str) -> None:
    """Make a call that takes years and in which no other thread ever runs."""
    with socket.socket(socket.AF_UNIX) as sock:
        # It can be asked to end as soon as it has arrived, and is asked once.
        with suppress(asyncpool.errors.JobCancelled):
            knock(sock, gate, word)
            pow(3, 10**8)
        pow(3, 10**8)


def backtrack(gate: str, word: str) -> None:
    import re

    with arrive(gate, word):
        re.match(r"(a+)+$", "a" * 64 + "b")


def refuse_to_end(gate: str, word: str) -> NoReturn:
    """Ignore whatever can be ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with arrive(gate, word):
        while True:
            time.sleep(3600)


def sign_at_sigterm(gate: str, path: str) -> NoReturn:
    """Leave something in *path* when told to end."""

    def end(*_: object) -> NoReturn:
        sign(path, 1)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    with arrive(gate):
        while True:
            signal.pause()


# Ways to leave something behind.


_HOLD = "import sys, time; sys.path[:0] = {path!r}; from tests.helpers import jobs; "


def start_program(gate: str, word: str, *, new_session: bool) -> int:
    """Start a program that waits at the gate, and leave it there."""
    import subprocess

    code = _HOLD.format(path=sys.path) + f"jobs.wait_at({gate!r}, {word!r})"
    return subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=new_session
    ).pid


def start_program_and_wait(gate: str, word: str, *, new_session: bool) -> str:
    start_program(gate, word, new_session=new_session)
    return wait_at(gate, f"{word}'s parent")


def daemonize(gate: str, word: str) -> str:
    """Start a process the way daemons are started: its parents are all gone."""
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            wait_at(gate, word)
        os._exit(0)
    os.waitpid(child, 0)
    return wait_at(gate, f"{word}'s worker")


def fork_and_return(gate: str) -> str:
    """Return twice, once in a copy of the worker."""
    child = os.fork()
    pass_by(gate, "copy" if child == 0 else "worker")
    return "copy" if child == 0 else "worker"


def start_thread(gate: str, word: str) -> None:
    threading.Thread(target=wait_at, args=(gate, word), daemon=True).start()


def knows(name: str) -> bool:
    return name in globals()


def throw(error: BaseException) -> NoReturn:
    raise error


def raise_in_thread(text: str) -> str:
    def body() -> NoReturn:
        raise LookupError(text)

    thread = threading.Thread(target=body, name="helper")
    thread.start()
    thread.join()
    return text


def finish_threads() -> int:
    """Start threads that do something and end."""
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(square(n))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(results)


# Ways to wear a worker out.


def retire_at(gate: str = "") -> int:
    """Ask to be the last job of this worker; wait at a gate if there is one."""
    asyncpool.retire_worker()
    asyncpool.retire_worker()
    return perhaps_wait(gate)


def wait_if_there(flag: str, gate: str) -> None:
    if os.path.exists(flag):
        wait_at(gate, "initializer")


def be_the_only_one(flag: str) -> None:
    """Fail, as an initializer, if there was one before."""
    os.close(os.open(flag, os.O_CREAT | os.O_EXCL))


def fail_if_there(flag: str) -> None:
    if os.path.exists(flag):
        raise LookupError(flag)


def leak(size: int, gate: str = "") -> int:
    """Keep *size* bytes for as long as the worker lives."""
    _leaks.append(b"x" * size)
    return perhaps_wait(gate)


_leaks: list[bytes] = []


def wait_with(gate: str, baggage: Any) -> int:
    """Have a look at all of *baggage*, and wait."""
    total = sum(memoryview(baggage).cast("B")[::4096])
    wait_at(gate, "baggage")
    return total


def bounds() -> tuple[int, set[int], tuple[int, int]]:
    """Return the niceness, the CPUs and the limit of descriptors of this worker."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    return os.nice(0), os.sched_getaffinity(0), limit


# Output.


def say(out: str = "", err: str = "") -> None:
    os.write(1, out.encode())
    os.write(2, err.encode())


def flood(stream: int, size: int) -> int:
    """Write *size* bytes, in lines."""
    line = b"x" * 99 + b"\n"
    for _ in range(size // len(line)):
        os.write(stream, line)
    return size


def flood_without_end(gate: str, stream: int) -> NoReturn:
    pass_by(gate, "flood")
    while True:
        os.write(stream, b"y" * 99 + b"\n")


# Errors.


def fail(error: BaseException) -> NoReturn:
    raise error


def divide(one: float, other: float) -> float:
    return one / other  # the line that fails


def make_lock() -> object:
    """Return what cannot be pickled."""
    return threading.Lock()


def recurse(depth: int = 0) -> int:
    return recurse(depth + 1) + 1


def exhaust_memory() -> int:
    return len(bytearray(1 << 62))


def leave(status: object = 3) -> NoReturn:
    sys.exit(status)  # type: ignore[arg-type]


def stray_descriptors() -> list[str]:
    """Return the sockets, pipes and files that this worker has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sorted(found)


def surroundings() -> dict[str, object]:
    """Return what a process inherits, or arranges for itself before its first job."""
    import re

    handlers = {
        number.name: repr(signal.getsignal(number)).split(" at ")[0]
        for number in signal.Signals
    }
    wakeup, umask = signal.set_wakeup_fd(-1), os.umask(0)
    os.umask(umask)
    return {
        "wakeup": wakeup,
        "umask": umask,
        "environment": dict(os.environ),
        "flags": tuple(sys.flags),
        "descriptors": [re.sub(r"\d+", "N", name) for name in stray_descriptors()],
        "handlers": handlers,
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "argv": sys.argv,
        "path": sys.path,
        "directory": os.getcwd(),
        "leads": os.getsid(0) == os.getpgrp() == os.getpid(),
        "stdin": os.read(0, 1),
        "modules": modules(),
    }


def dice() -> float:
    return random.random()


def modules() -> list[str]:
    return sorted(sys.modules)


def close_streams() -> None:
    os.close(1)
    os.close(2)


def read_stdin() -> tuple[str, bytes]:
    return sys.stdin.read(), os.read(0, 100)


def say_bytes(*pieces: bytes) -> None:
    for piece in pieces:
        os.write(1, piece)


def spin() -> NoReturn:
    while True:
        pass


# What maps call.


def pair(one: Any, other: Any) -> tuple[Any, Any]:
    return one, other


LOADS: list[int] = []


class Loaded:
    """Leaves the pid of each process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, ()


def _load() -> Loaded:
    LOADS.append(os.getpid())
    return Loaded()


def choose(item: tuple[str, Any]) -> Any:
    """Do what an item says, such as ``("return", 3)``."""
    what, argument = item
    return _CHOICES[what](argument)


_SHARED: list[int] = []
_variable: ContextVar[int] = ContextVar("_variable", default=0)
seen: ContextVar[tuple[Any, ...]] = ContextVar("seen", default=())


def _swap(value: int) -> int:
    before = _variable.get()
    _variable.set(value)
    return before


_CHOICES: dict[str, Callable[[Any], Any]] = {
    "return": lambda value: value,
    "raise": fail,
    "die": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "wait": wait_at,
    "sign": lambda call: sign(*call),
    "make": bytearray,
    "shared": lambda _: _SHARED,
    "swap": _swap,
    "unpicklable": lambda _: threading.Lock(),
    "pid": lambda _: os.getpid(),
    "attempt": lambda _: asyncpool.current_job().attempt,
    "sleep": time.sleep,
    "exhaust": lambda _: exhaust_memory(),
}


def fail_before_attempt_3(item: int) -> tuple[int, int]:
    attempt = asyncpool.current_job().attempt
    if attempt < 3:
        raise LookupError(attempt)
    return item, attempt


class Poison:
    """Cannot be unpickled in a worker."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _raise_in_a_worker, ()


def _raise_in_a_worker() -> None:
    raise LookupError("poison")


def call_or_return(value: Any) -> Any:
    return value() if callable(value) else value


# Broadcasts.


def configure(value: object, gate: str = "") -> int:
    """Keep *value* in the worker's state; wait at a gate if there is one; return the pid."""
    state = asyncpool.worker_state()
    state.history = [*getattr(state, "history", []), value]
    if gate:
        wait_at(gate, "configure")
    return os.getpid()


def size(data: Any) -> int:
    return memoryview(data).nbytes


def configure_as_a_job(value: object) -> None:
    """Do what only a job can do, and keep what it finds."""
    job = asyncpool.current_job()
    asyncpool.heartbeat(value)
    seen.set((*seen.get(), value))
    job.logger.warning("configured")
    configure((value, job.attempt, job.deadline, job.last_details, seen.get()))


def all_seen() -> tuple[Any, ...]:
    return seen.get()


async def configure_as_a_job_async(value: object) -> None:
    configure_as_a_job(value)


def configure_by_a_copy(value: object) -> None:
    """Fork, and have both processes return."""
    if os.fork():
        os.wait()
        configure(value)


def retire_if_new(path: str) -> None:
    """Retire the worker, unless this is the first call of all."""
    if os.path.exists(path):
        asyncpool.retire_worker()
    else:
        with open(path, "x"):
            pass


def configure_too(value: object) -> None:
    configure(value)


def configure_unless(path: str, value: object) -> None:
    """Fail if there is a file, else configure."""
    if os.path.exists(path):
        raise LookupError(f"there is {value!r}")
    configure(value)


def configure_where_told(gate: str, value: object) -> str:
    """Ask at the gate what to do."""
    answer = wait_at(gate, "configure")
    if answer == "die":
        os._exit(3)
    if answer == "raise":
        raise LookupError(f"no {value!r} here")
    configure(value)
    return answer


def history() -> tuple[int, list[object]]:
    return os.getpid(), list(getattr(asyncpool.worker_state(), "history", []))
