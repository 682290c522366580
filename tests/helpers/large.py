"""Large objects, functions that do things to them, and a look at the shared memory.

The objects and functions are imported by workers too, so nothing heavy is imported
here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pickle
import random
import resource
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import asyncpool
from asyncpool._wire.frames import FrameKind, header
from asyncpool._wire.messages import pack_numbers
from tests.helpers import faults
from tests.helpers.inside import segments_by_number, segments_mapped, wait_for_grant

if TYPE_CHECKING:
    import asyncio

    from asyncpool import Pool
    from asyncpool._worker.channels import LargeBuffers

T = TypeVar("T")


def pattern(size: int, seed: int = 0) -> bytearray:
    """Return bytes that are the same for the same *seed*, and no others are."""
    return bytearray(random.Random(seed).randbytes(size))


class Block:
    """Bytes that stay out of a pickle's stream, as those of an array do."""

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and bytes(self.data) == bytes(other.data)

    def __hash__(self) -> int:
        return checksum(self)

    def __repr__(self) -> str:
        return f"<Block {len(self.data)} bytes, {checksum(self):08x}>"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return Block, (pickle.PickleBuffer(self.data),)


class Crowd(list[Any]):
    """A list that there may be weak references to."""


class Passenger:
    """An object that is stopped, or noted, where it is pickled and unpickled.

    That is so in the process that has set up a :class:`Stop`, and nowhere else.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Passenger)

    def __hash__(self) -> int:
        return 1

    def __reduce__(self) -> tuple[Any, ...]:
        pass_by("pickled")
        return alight, ()


def alight() -> Passenger:
    pass_by("unpickled")
    return Passenger()


def pass_by(way: str) -> None:
    if Stop.current is not None:
        Stop.current.pass_by(way)


class Stop:
    """Where threads of this process are noted, and wait if they go one of these ways.

    Args:
        *ways: These; whoever goes another way goes on at once.
        most: How many are stopped, before all others go on.

    Attributes:
        passed: Which ways were gone, and by which threads.
        on_pass: Called on each of them.
    """

    current: Stop | None = None

    def __init__(self, *ways: str, most: int = sys.maxsize) -> None:
        import asyncio

        self.passed: list[tuple[str, str]] = []
        self.on_pass: Callable[[], object] = lambda: None
        self._ways = ways
        self._most = most
        self._stopped = 0
        self._go = threading.Event()
        self._news: asyncio.Event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._main = threading.get_ident()

    def pass_by(self, way: str) -> None:
        """Be noted, and wait, unless this is the loop's own thread."""
        self.passed.append((way, threading.current_thread().name))
        self.on_pass()
        if way not in self._ways or threading.get_ident() == self._main:
            return
        self._stopped += 1
        if self._stopped <= self._most:
            from tests.helpers.patience import PATIENCE

            self._loop.call_soon_threadsafe(self._news.set)
            assert self._go.wait(PATIENCE), "nobody let it go"

    async def reached(self, times: int = 1) -> None:
        """Wait until so many have been stopped."""
        while self._stopped < times:
            self._news.clear()
            await self._news.wait()

    def release(self) -> None:
        """Let everybody go on, from now on."""
        self._go.set()

    def __enter__(self) -> Self:
        assert Stop.current is None
        Stop.current = self
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        Stop.current = None


def filler(size: int) -> list[int]:
    """Return a list that has about *size* bytes when pickled."""
    return list(range(100_000, 100_000 + size // 5))


def crowd(size: int, *, at: float = 1.0) -> list[Any]:
    """Return a list that has about *size* bytes when pickled, and a passenger in it.

    Args:
        size: How many.
        at: How much of it is before the passenger.
    """
    found: list[Any] = filler(size)
    found.insert(int(len(found) * at), Passenger())
    return found


# The shared memory, as the pool sees it.


def numbers(pool: Pool) -> set[int]:
    """Return which segments there are."""
    return set(segments_by_number(pool))


def uses(pool: Pool) -> list[str]:
    """Return who has each segment, oldest first."""
    return [segment.use.value for segment in segments_by_number(pool).values()]


def in_use(pool: Pool) -> set[int]:
    """Return which segments somebody has."""
    segments = segments_by_number(pool).items()
    return {number for number, segment in segments if segment.use.value != "nobody"}


async def all_free(pool: Pool, *, but: Iterable[int] = ()) -> None:
    """Wait until nobody has any other segments."""
    import asyncio

    while in_use(pool) - set(but):  # noqa: ASYNC110 - nobody is told of that
        await asyncio.sleep(0)


async def freed(pool: Pool, *, left: Iterable[int]) -> None:
    """Wait until there are no segments but these."""
    import asyncio

    while numbers(pool) != set(left):  # noqa: ASYNC110 - nor of that
        await asyncio.sleep(0)


def mapped() -> int:
    """Count the segments that this process has mapped."""
    with Path("/proc/self/maps").open() as maps:
        return sum("/memfd:asyncpool (" in line for line in maps)


# What jobs do.


def same(value: T) -> T:
    return value


def checksum(block: Block) -> int:
    return zlib.crc32(block.data)


def checksums(*blocks: Block, **named: Block) -> list[int]:
    return [checksum(block) for block in (*blocks, *named.values())]


def is_readonly(block: Block) -> bool:
    return block.data.readonly


def make(size: int, seed: int = 0) -> Block:
    return Block(pattern(size, seed))


def make_many(count: int, size: int) -> list[Block]:
    return [make(size, seed) for seed in range(count)]


def make_stamped(size: int, seed: int) -> tuple[int, Block]:
    """Return it with the pid of the worker that has made it."""
    return os.getpid(), make(size, seed)


def overwrite(block: Block) -> int:
    """Change an argument, and return what the checksum was before."""
    before = checksum(block)
    block.data[:] = bytes(len(block.data))
    return before


_kept: list[Block] = []


def keep(*blocks: Block) -> None:
    _kept.extend(blocks)


def kept() -> list[int]:
    return [checksum(block) for block in _kept]


def let_go_of_one() -> None:
    _kept.pop()


def keep_and_return(size: int, seed: int) -> Block:
    keep(make(size, seed))
    return _kept[-1]


def wait_and_tell(gate: str) -> tuple[int, list[int]]:
    """Return who this worker is, and what it keeps, after a wait."""
    from tests.helpers import jobs

    jobs.wait_at(gate, "tell")
    return os.getpid(), kept()


def fail_with(*args: object) -> NoReturn:
    raise ValueError(*args)


class NamelessError(BaseException):
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise ValueError("no name for you")


def fail_namelessly(size: int) -> NoReturn:
    raise NamelessError("x" * size)


def fail_until(attempt: int, block: Block, text: str) -> int:
    """Raise a large exception in each attempt before."""
    if asyncpool.current_job().attempt < attempt:
        raise LookupError(text)
    return checksum(block)


def die_with(*blocks: Block) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def die_granted(lend: int) -> NoReturn:
    """Die with a segment for an outcome, of which so many bytes are lent already."""
    number = granted(100_000)
    if lend:
        faults.channels()[0].sendall(lent(number, lend))
    die_with()


def die_until(attempt: int, block: Block) -> int:
    """Spoil the argument and die in each attempt before."""
    if asyncpool.current_job().attempt < attempt:
        overwrite(block)
        die_with()
    return checksum(block)


def wait_with(gate: str, word: str, *blocks: Block) -> list[int]:
    from tests.helpers import jobs

    jobs.wait_at(gate, word)
    return [checksum(block) for block in blocks]


def fork_with(gate: str, block: Block) -> None:
    """Return, and leave a copy of this worker behind, which says what it has."""
    from tests.helpers import jobs

    if os.fork():
        return
    answer = jobs.wait_at(gate, "copy")
    jobs.pass_by(gate, f"{answer}: {checksum(block)}")
    os._exit(0)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def sign_with(path: str, block: Block) -> None:
    """Leave a file that says that this ran."""
    Path(path).write_text(str(checksum(block)))


def segment_descriptors() -> list[int]:
    """Return the descriptors of segments that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:asyncpool ("):
                found.append(int(name))
    return found


# What jobs must not do.


def cargo() -> LargeBuffers:
    """Return what this worker has of shared memory; no interface leads there."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "serve":
            found: LargeBuffers = frame.f_locals["self"]._large_buffers
            return found
        frame = frame.f_back
    raise LookupError("this is no worker's main thread")


def scribble() -> int:
    """Write over every segment that this worker has, and return how many it has."""
    memories = list(segments_mapped(cargo()).values())
    for memory in memories:
        memory.write(0, [os.urandom(memory.size)])
    return len(memories)


def keep_descriptors() -> None:
    """Keep a descriptor of every segment that this worker gets from now on."""
    from asyncpool._worker.channels import LargeBuffers

    arrive = LargeBuffers.arrive

    def arrive_and_keep(self: Any, number: int, fd: int | None, size: int) -> None:
        assert fd is not None
        os.dup(fd)
        arrive(self, number, fd, size)

    LargeBuffers.arrive = arrive_and_keep  # type: ignore[method-assign] # on purpose


def take_away() -> list[str]:
    """Try to make this worker's segments smaller, larger and something else.

    Returns:
        How each attempt ended.
    """
    seals = fcntl.F_SEAL_WRITE
    attempts: list[Callable[[int], object]] = [
        lambda fd: os.ftruncate(fd, 0),
        lambda fd: os.ftruncate(fd, os.fstat(fd).st_size - 1),
        lambda fd: os.ftruncate(fd, os.fstat(fd).st_size + 1),
        lambda fd: os.posix_fallocate(fd, os.fstat(fd).st_size, 1),
        lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals),
    ]
    return [_outcome_of(attempt, fd) for fd in _ways_in() for attempt in attempts]


def _ways_in() -> list[int]:
    """Return descriptors of what is mapped and of what is open."""
    found = segment_descriptors()
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:asyncpool (" in line:
            with contextlib.suppress(PermissionError):  # only root may
                path = f"/proc/self/map_files/{line.split()[0]}"
                found.append(os.open(path, os.O_RDWR))
    return found


def _outcome_of(attempt: Callable[[int], object], fd: int) -> str:
    try:
        attempt(fd)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def open_no_more() -> None:
    """Have this worker unable to open any descriptor."""
    next_one = os.dup(0)
    os.close(next_one)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, hard))


def open_again() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_no_more_and_make(size: int, seed: int) -> Block:
    block = make(size, seed)
    open_no_more()
    return block


# What no worker says.


def lent(number: int, *sizes: int) -> bytes:
    payload = pack_numbers(sizes)
    return header(FrameKind.LENT, len(payload), number=number) + payload


def area(size: int) -> bytes:
    return header(FrameKind.AREA, size) + bytes(size)


def want(size: int) -> bytes:
    return header(FrameKind.WANT, 0, size)


def returned(number: int) -> bytes:
    return header(FrameKind.SEGMENT_RETURNED, 0, number=number)


def lost(number: int) -> bytes:
    return header(FrameKind.LOST, 0, number=number)


def granted(size: int) -> int:
    """Ask for a segment as a worker does, and return its number."""
    faults.channels()[0].sendall(want(size))
    number = wait_for_grant(cargo())
    assert number
    return number


# Each with the number of the segment that the argument came in, and that of one that
# another worker has.
OFFENCES: dict[str, Callable[..., bytes]] = {
    "lends what there is not": lambda **_: lent(999, 100),
    "lends what it was lent": lambda mine, **_: lent(mine, 100),
    "lends what another has": lambda other, **_: lent(other, 100),
    "lends more than there is": lambda **_: lent(granted(100_000), 114_689),
    "lends more than there is, in sum": lambda **_: lent(
        granted(100_000), 57_344, 57_345
    ),
    "lends beyond all bounds": lambda **_: lent(granted(100_000), 1 << 63),
    "lends beyond all bounds, in sum": lambda **_: lent(
        granted(100_000), (1 << 64) - 1, 1
    ),
    "lends half a size": lambda **_: header(FrameKind.LENT, 3, number=1) + b"abc",
    "lends twice": lambda **_: lent(granted(100_000), 10) * 2,
    "sends too many areas": lambda **_: area(100_000) * 11,
    "sends an area that is too large": lambda **_: area((1 << 20) + 1),
    "lends and sends too much": lambda **_: (
        lent(granted(600_000), 600_000) + area(500_000)
    ),
    "wants nothing": lambda **_: want(0),
    "wants too much": lambda **_: want((1 << 21) + 1),
    "wants twice at once": lambda **_: want(100_000) * 2,
    "wants more than it was granted": lambda **_: (
        want(100_000) if granted(100_000) else b""
    ),
    "returns twice": lambda mine, **_: returned(mine) * 2,
    "returns what there is not": lambda **_: returned(999),
    "returns what another has": lambda other, **_: returned(other),
    "loses what there is not": lambda **_: lost(999),
    "loses what it has returned": lambda mine, **_: returned(mine) + lost(mine),
}


def offend(name: str, other: int, block: Block) -> NoReturn:
    """Say what no worker says, with an argument in shared memory."""
    [mine] = segments_mapped(cargo())
    faults.say(OFFENCES[name](mine=mine, other=other))
    raise AssertionError
