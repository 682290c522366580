"""The agent: it lets clients in other processes use a pool, of which it is an ordinary caller."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

from asyncpool._core import log_messages as say
from asyncpool._engine.admission import list_functions
from asyncpool._engine.engine import Engine
from asyncpool._engine.job import PoolJob
from asyncpool._remote.agent_client import AgentClient
from asyncpool._remote.carrier import Carrier
from asyncpool._remote.messages import (
    Kind,
    Message,
    difference,
    greeting,
    pack_greeting,
    unpack_greeting,
)
from asyncpool._remote.relayed import PackedFunctions, RelayedJob
from asyncpool._remote.router import CREDITS
from asyncpool._remote.turns import Turns
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.log_records import LogMessage
from asyncpool._wire.page import Beat
from asyncpool.errors import ProtocolError
from asyncpool.events import Event, JobEnded, Resized

# How many clients an agent has.
MOST_CLIENTS = 64

# The ends of so many jobs are kept, until their clients are told.
_MOST_ENDS = 2 * CREDITS


class Agent:
    """Lets clients use a pool; carriers bring them.

    Args:
        pool: The :class:`asyncpool.Pool`, for what is asked about it.
        engine: What runs it.
        name: What clients call this node.
        version: That of asyncpool.
        most_clients: How many there may be at a time.

    Attributes:
        pool: As above.
        engine: As above.
        turns: Whose job is next.
        functions: The functions of the clients.
        stored: Calls that the client's engine has brought ahead of their jobs, by job.
        ends: How jobs have ended of which their clients will be told, by the pool's number.
    """

    def __init__(
        self,
        pool: Any,
        engine: Engine,
        name: str,
        version: str,
        *,
        most_clients: int = MOST_CLIENTS,
    ) -> None:
        self.pool, self.engine = pool, engine
        self._loop = asyncio.get_running_loop()
        self._most_clients = most_clients
        self.turns = Turns()
        self.functions = engine.traffic.functions.packed(PackedFunctions)
        self.stored: dict[int, bytes | OutOfBandPickle] = {}
        self.ends: dict[int, JobEnded] = {}
        self._clients: dict[int, AgentClient] = {}
        self._numbers = 0
        data = engine.config.data
        codec = "pickle" if data is None else data.how.name
        self._greeting = greeting(version, codec) | {
            "node": name,
            "credits": CREDITS,
            "fresh": engine.fresh,
            "counts_jobs": engine.counts_jobs,
        }
        self._told_lanes = self._lanes
        self._turn_is_due = self._follows = self._closing = False
        self._idle = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        engine.heartbeats.listeners.append(self._on_heartbeat)
        engine.hub.add_listener(self._on_event)

    # Clients that come and go.

    def welcome(self, carrier: Carrier, hello: bytes) -> None:
        """Begin a session with the client at the other end of *carrier*, or say why not."""
        refused = difference(self._greeting, unpack_greeting(hello))
        if self._closing:
            refused = "it is closing"
        elif not refused and len(self._clients) >= self._most_clients:
            refused = f"{self._most_clients} clients use this pool already"
        if refused:
            self.refuse(refused, carrier.process)
            carrier.send(pack_greeting({"refused": refused}))
            carrier.close()
            return
        self._numbers += 1
        client = self._clients[self._numbers] = AgentClient(
            self, self._numbers, carrier
        )
        self.turns.open(client.number)
        told = {"lanes": self._lanes, "stamp": int(self._loop.time() * 1e6)}
        carrier.send(pack_greeting(self._greeting | told))

    async def drain(self) -> None:
        """Take no more clients and jobs, and wait for those jobs that are here.

        Cancellation:
            Safe.
        """
        self._closing = True
        for client in self._clients.values():
            client.put(Message(Kind.CLOSING))
            client.flush()
        while any(client.busy for client in self._clients.values()):
            self._idle.clear()
            await self._idle.wait()
        for client in self._clients.values():
            client.flush()  # what has ended in this iteration of the loop

    def close(self) -> None:
        """End all sessions, whose jobs are cancelled."""
        self.engine.heartbeats.listeners.remove(self._on_heartbeat)
        self.engine.hub.remove_listener(self._on_event)
        for client in [*self._clients.values()]:
            self._forget(client)

    def refuse(self, why: str, process: int | None, jobs: Sequence[str] = ()) -> None:
        """Count and log that a client does not come in, or is cut off, with the names of its jobs."""
        self.engine.figures.refused_clients += 1
        self._say(say.CLIENT_REFUSED, why, process, jobs)

    def _say(
        self, record: LogMessage, why: str, process: int | None, jobs: Sequence[str]
    ) -> None:
        about = {"pid": process, "reason": why, "jobs": len(jobs)}
        about["functions"] = list_functions(Counter(jobs))
        self.engine.log.now(record, about)

    def end(self, client: AgentClient, why: Exception | str) -> None:
        """Give up the jobs of a client that is gone (a text), or has broken the rules."""
        if client.number not in self._clients:
            return
        jobs, process = client.functions(), client.carrier.process
        if isinstance(why, Exception):
            kind = "" if isinstance(why, ProtocolError) else f"{type(why).__name__}: "
            self.refuse(f"{kind}{why}", process, jobs)
        elif jobs:
            self.engine.figures.lost_clients += 1
            self._say(say.CLIENT_LOST, why, process, jobs)
        self._forget(client)
        self.turn_soon()

    def _forget(self, client: AgentClient) -> None:
        del self._clients[client.number]
        self.turns.close(client.number)
        client.close()
        if self._follows and not any(one.follows for one in self._clients.values()):
            self._follows = False
            self.engine.hub.remove_listener(self._note_end)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Have something done that may outlast its client."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What happens in the pool.

    def follow(self) -> None:
        """Note where and when jobs run from now on, since a client asks for it."""
        if not self._follows:
            self._follows = True
            self.engine.hub.add_end_listener(self._note_end)

    def _note_end(self, event: JobEnded) -> None:
        if len(self.ends) >= _MOST_ENDS:
            del self.ends[next(iter(self.ends))]
        self.ends[event.job_id] = event

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Resized):
            self.turn_soon()

    def _on_heartbeat(self, job: PoolJob[Any], beat: Beat) -> None:
        if isinstance(job, RelayedJob):
            job.client.beat(job.number, beat.details)
        elif job.options.codec is self.functions:  # a stream of a client
            for client in self._clients.values():
                for number, one in client.jobs.items():
                    if one is job:
                        client.beat(number, beat.details)

    # What the pool gets.

    def look(self) -> None:
        """Look whether the pool has room for jobs that come now."""
        self.turns.look(self.engine.unserved, self._lanes)

    def turn_soon(self) -> None:
        """Have a turn with what else happens in this iteration of the loop."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self.turn)

    def settled(self, client: AgentClient) -> None:
        """Hear that a job has ended; tell its client at once if that waits for no other one.

        The pool may be in the middle of a decision, so it gets no job now.
        """
        if client.jobs or self.turns.waiting or self._closing:
            self.turn_soon()
        else:
            client.flush()

    def turn(self) -> None:
        """Give the pool what it has room for, and say what there is to say."""
        self._turn_is_due = False
        while self.turns.waiting:
            self.look()
            begun: dict[int, list[int]] = {}
            for number, job in self.turns.release(self._may_begin):
                begun.setdefault(number, []).append(job)
            if not begun:
                break
            for number, jobs in begun.items():
                self._clients[number].begin(jobs)
        lanes = self._lanes
        for client in self._clients.values():
            if lanes != self._told_lanes:
                client.put(Message(Kind.LANES, priority=lanes))
            client.flush()
        self._told_lanes = lanes
        self._idle.set()

    def _may_begin(self, client: int) -> bool:
        return self._clients[client].carrier.may_begin

    @property
    def _lanes(self) -> int:
        return self.engine.most_workers * self.engine.concurrency
