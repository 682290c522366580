"""A service that runs jobs from a Redis stream, next to others of its kind.

    python redis_stream.py --socket /run/redis.sock --consumer $HOSTNAME

Redis hands each entry to one consumer of the group, and notes when it did.  That
moment is the entry's lease: one that nobody has touched for ``--lease`` seconds belongs
to whoever claims it.  So a consumer touches its entries as long as their jobs wait or
run, which is what the lease keeper is for, and claims those that others have left.

No entry is run by two workers at once:

* A consumer that is SIGKILLed takes its workers with it, within a second, and the lease is
  longer than that and a cycle of the keeper together.
* A consumer that is stopped, or whose loop is blocked, extends nothing.  Its workers have
  been told when their entries' leases lapse, and those that still run one kill themselves a
  quarter of a lease before anybody else can claim it.  What it had asked Redis for when
  it was stopped, and got too late, it leaves alone.
* What it cannot know of is time in which nothing of it runs: if the machine is suspended, or
  all of its processes are stopped together, a worker that goes on later may do so for some
  milliseconds, as may one that is in the middle of C code which holds the GIL.

An entry may be run twice, one after the other, if its consumer was killed or stopped between
the end of the job and the acknowledgement, or in the middle of the job: jobs of a
stream have to bear that.  It is acknowledged, or declared dead, only by who has it then.

If Redis is gone the service ends with an error: its entries are safe, and whoever
supervises it starts it again.  SIGTERM has it finish what it has in hand.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio
from redis.exceptions import BusyLoadingError, ResponseError

import asyncpool

Fields = dict[str, str]

# In seconds.  Workers may outlive their consumer by one, and its last beat may be a
# quarter of a lease ago.
MIN_LEASE = 2.0

# As a share of the lease: how old an entry may be when its job is submitted.  The keeper
# counts from then on, so by so much the lease is shorter for it.
LATENESS = 1 / 4

# Only its owner may extend an entry or end it.  Both ask and act in one step: between
# two, the entry could change hands, and XCLAIM would take it back from its new owner.
_IF_MINE = """
local mine = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2])
if #mine == 0 then return 0 end
"""
_EXTEND = f"""{_IF_MINE}
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'JUSTID')
return 1
"""
_FINISH = f"""{_IF_MINE}
if ARGV[4] ~= '' then
  redis.call('XADD', KEYS[2], '*', 'entry', ARGV[3], 'error', ARGV[4])
end
return redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
"""


def work(entry: str, fields: Fields, consumer: str, journal: str) -> str:
    """Hash a text so many times that it takes a while: the job.

    Who does what, and when, is written to *journal*, if there is one: a line each
    time that something has been done, so that one can see later when the job ended,
    also if it did not end by itself.
    """
    digest = fields["text"].encode()
    note(journal, entry, consumer, "begin")
    for _ in range(int(fields["rounds"])):
        digest = hashlib.pbkdf2_hmac("sha256", digest, b"salt", 500)
        time.sleep(0.01)  # as if it waited for a disk
        note(journal, entry, consumer, "alive")
    note(journal, entry, consumer, "end")
    return digest.hex()


def note(journal: str, entry: str, consumer: str, what: str) -> None:
    """Append a line, which is whole also if several processes do it at once."""
    if journal:
        line = f"{time.monotonic():.6f} {entry} {consumer} {os.getpid()} {what}\n"
        descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


class Consumer:
    """One member of the group: reads entries, and has them run in its pool."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.pool = asyncpool.Pool(options.workers, name=options.consumer)
        # Four beats for each lease, and room for as many entries as are in hand.
        cycle = options.lease / 4
        self.in_hand = 2 * options.workers
        self.keeper = asyncpool.LeaseKeeper(
            self.extend,
            max_rate=max(10.0, 2 * self.in_hand / cycle),
            interval=cycle,
            ttl=(1 - LATENESS) * options.lease,
        )
        self.redis: Any = redis.asyncio.Redis(
            unix_socket_path=options.socket, decode_responses=True
        )
        self._extend: Callable[..., Awaitable[int]]
        self._extend = self.redis.register_script(_EXTEND)
        self._finish: Callable[..., Awaitable[int]]
        self._finish = self.redis.register_script(_FINISH)
        self._entries: set[str] = set()
        self._room = asyncio.Semaphore(self.in_hand)
        self._cursor, self._look_at = "0-0", 0.0
        self._asked_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until *stop* is set; finish what is in hand then."""
        # In this order: jobs need their leases to the end, and leases the connection.
        async with self.redis, self.keeper, self.pool:
            await self.join()
            async with asyncio.TaskGroup() as jobs:
                while not stop.is_set():
                    for entry, fields in await self.next_entries():
                        if entry not in self._entries:
                            self._entries.add(entry)
                            await self._room.acquire()
                            jobs.create_task(self.handle(entry, fields, self._asked_at))

    async def join(self) -> None:
        """Make sure that there are a stream and a group."""
        with contextlib.suppress(ResponseError):  # there are
            await self.redis.xgroup_create(
                self.options.stream, self.options.group, id="0", mkstream=True
            )

    async def next_entries(self) -> list[tuple[str, Fields]]:
        """Return what others have left, or else what is new; wait a little for it."""
        async with self._room:
            room = self.in_hand - len(self._entries)
        now = self._asked_at = time.monotonic()
        if now >= self._look_at:
            entries = await self.left_entries(room)
            if self._cursor == "0-0":
                self._look_at = now + self.options.lease / 10
            if entries:
                return entries
            self._asked_at = time.monotonic()
        streams = await self.redis.xreadgroup(
            self.options.group,
            self.options.consumer,
            {self.options.stream: ">"},
            count=room,
            block=100,
        )
        return [entry for _, entries in streams for entry in entries]

    async def left_entries(self, room: int) -> list[tuple[str, Fields]]:
        """Claim entries whose leases have lapsed."""
        self._cursor, entries, *_ = await self.redis.xautoclaim(
            self.options.stream,
            self.options.group,
            self.options.consumer,
            min_idle_time=int(self.options.lease * 1000),
            start_id=self._cursor,
            count=room,
        )
        for entry, _ in entries:
            print("claimed", entry, flush=True)
        return list(entries)

    async def handle(self, entry: str, fields: Fields, asked_at: float) -> None:
        """Run an entry, and end it with its job; or leave it, if it came too late.

        Redis has noted that it is ours at *asked_at* or later.
        """
        try:
            if time.monotonic() - asked_at < LATENESS * self.options.lease:
                await self.run_job(entry, fields)
            else:  # it may be another's by now; if it is not, it will be claimed
                print("late", entry, flush=True)
        finally:
            self._entries.discard(entry)
            self._room.release()

    async def run_job(self, entry: str, fields: Fields) -> None:
        """Run one entry, and end it with its job: done, failed, or somebody else's."""
        job = self.pool.options(lease=(self.keeper, entry)).submit(
            work, entry, fields, self.options.consumer, self.options.journal
        )
        try:
            await job
        except asyncio.CancelledError:
            if not self.is_lost(job):
                raise
            print("lost", entry, flush=True)
        except Exception as error:  # noqa: BLE001 - the job's, or its worker's
            print("failed", entry, flush=True)
            await self.finish(entry, f"{type(error).__name__}: {error}")
        else:
            if await self.finish(entry):
                print("done", entry, flush=True)

    @staticmethod
    def is_lost(job: asyncpool.Job[str]) -> bool:
        """Tell a job that the keeper has cancelled from the end of this service."""
        task = asyncio.current_task()
        return job.cancelled() and task is not None and not task.cancelling()

    async def extend(self, entry: str) -> None:
        """Begin the lease of an entry anew, if it is still ours: one beat."""
        options = self.options
        try:
            mine = await self._extend(
                keys=[options.stream], args=[options.group, options.consumer, entry]
            )
        except BusyLoadingError as error:
            raise asyncpool.errors.ThrottledError(str(error)) from error
        if not mine:
            raise asyncpool.errors.LeaseLostError(
                f"{entry} belongs to another consumer"
            )

    async def finish(self, entry: str, error: str = "") -> bool:
        """Acknowledge an entry; put it on the stream of the dead if it has failed."""
        options = self.options
        mine = await self._finish(
            keys=[options.stream, f"{options.stream}:dead"],
            args=[options.group, options.consumer, entry, error],
        )
        return bool(mine)


def lease_of(text: str) -> float:
    """Parse a lease."""
    seconds = float(text)
    if not seconds >= MIN_LEASE:
        raise argparse.ArgumentTypeError(f"must be at least {MIN_LEASE:g} seconds")
    return seconds


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Run jobs from a Redis stream.")
    parser.add_argument("--socket", required=True, help="the Unix socket of Redis")
    parser.add_argument("--consumer", required=True, help="a name of its own")
    parser.add_argument("--stream", default="jobs")
    parser.add_argument("--group", default="workers")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lease", type=lease_of, default=30.0, help="in seconds")
    parser.add_argument("--journal", default="", help="a file: who did what, and when")
    return parser.parse_args()


async def main() -> None:
    """Consume until SIGTERM or SIGINT."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Consumer(parse()).run(stop)


if __name__ == "__main__":
    asyncio.run(main())
