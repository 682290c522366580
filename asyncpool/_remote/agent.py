"""The agent: it lets clients in other processes use a pool."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from asyncpool._core import log_messages as say
from asyncpool._engine.admission import list_functions
from asyncpool._engine.engine import Engine
from asyncpool._engine.loop import Alarm
from asyncpool._remote.agent_answers import Answers
from asyncpool._remote.agent_client import AgentClient
from asyncpool._remote.agent_jobs import CREDITS, AgentJobs
from asyncpool._remote.begun_page import make_page
from asyncpool._remote.carrier import (
    LEASE,
    Carrier,
    beat_every,
    difference,
    greeting,
    pack_greeting,
    unpack_greeting,
)
from asyncpool._remote.messages import Kind, Message
from asyncpool._remote.relay import Relay
from asyncpool._remote.reliable_link import MAX_PIECE
from asyncpool._remote.stored_calls import PackedFunctions, StoredPayloads
from asyncpool._wire.log_records import LogMessage
from asyncpool.errors import ProtocolError

# How many clients an agent has.
MOST_CLIENTS = 64

_MICRO = 1e6


class Agent:
    """Lets clients use a pool; carriers bring them.

    Args:
        pool: The :class:`asyncpool.Pool`, for what is asked about it.
        supervisor: What runs it.
        name: What clients call this node.
        version: That of asyncpool.
        most_clients: How many there may be at a time.
        lease: For how many seconds the agent works for a client that it does not hear.
        stored: The calls that the engine brings, if it has a store.
    """

    def __init__(
        self,
        pool: Any,
        supervisor: Engine,
        name: str,
        version: str,
        *,
        most_clients: int = MOST_CLIENTS,
        lease: float = LEASE,
        stored: StoredPayloads | None = None,
    ) -> None:
        self._pool = pool
        self._supervisor = supervisor
        self._loop = asyncio.get_running_loop()
        self._most_clients, self._lease = most_clients, lease
        self._jobs = AgentJobs(credits=CREDITS, most_clients=most_clients, lease=lease)
        self._clients: dict[int, AgentClient] = {}
        self._functions = supervisor.traffic.functions.packed(PackedFunctions)
        self._relay = Relay(supervisor, self._functions, stored)
        self._answers = Answers(pool, supervisor)
        data = supervisor.config.data
        codec = "pickle" if data is None else data.how.name
        self._greeting = greeting(version, codec) | {
            "node": name,
            "credits": CREDITS,
            "lease": lease,
            "fresh": supervisor.fresh,
            "counts_jobs": supervisor.counts_jobs,
        }
        self._told_lanes = self._lanes
        self._turn_is_due = False
        self._beat = Alarm(self._loop, self._on_beat)
        self._beat_every = beat_every(lease)
        self._beat.set_in(self._beat_every)
        self._closing = False
        self._idle = asyncio.Event()
        supervisor.heartbeats.listeners.append(self._relay.on_heartbeat)

    # Clients that come and go.

    def welcome(self, carrier: Carrier, hello: bytes) -> None:
        """Begin a session with the client at the other end of *carrier*, or say why not."""
        refused = difference(self._greeting, unpack_greeting(hello))
        if self._closing:
            refused = "it is closing"
        number = None if refused else self._jobs.open(self._loop.time())
        if number is None:
            refused = refused or f"{self._most_clients} clients use this pool already"
            self.refuse(refused, carrier.process)
            carrier.send(pack_greeting({"refused": refused}))
            carrier.close()
            return
        page = make_page(1 + CREDITS)
        client = AgentClient(
            number,
            carrier,
            jobs=self._jobs,
            relay=self._relay,
            answers=self._answers,
            turns=self,
            page=None if page is None else page[1],
        )
        self._clients[number] = client
        carrier.allow(MAX_PIECE)
        told = {
            "session": number,
            "lanes": self._lanes,
            "stamp": int(self._loop.time() * _MICRO),
            "page": 0 if page is None else page[0],
        }
        if page is not None:
            client.lend_page(page[0])
        carrier.send(pack_greeting(self._greeting | told))

    async def drain(self) -> None:
        """Take no more clients and jobs, and wait for those jobs that are here.

        Cancellation:
            Safe.
        """
        self._closing = True
        for client in self._clients.values():
            client.put(Message(Kind.CLOSING))
            client.push()
        while any(client.busy for client in self._clients.values()):
            self._idle.clear()
            await self._idle.wait()
        for client in self._clients.values():
            client.push()  # what has ended in this turn of the loop

    def close(self) -> None:
        """End all sessions, whose jobs are cancelled."""
        self._beat.cancel()
        self._supervisor.heartbeats.listeners.remove(self._relay.on_heartbeat)
        for client in [*self._clients.values()]:
            del self._clients[client.number]
            self._jobs.close(client.number)
            client.close()

    def refuse(self, why: str, process: int | None, jobs: Sequence[str] = ()) -> None:
        """Count and log that a client does not come in, or is cut off, with the names of its jobs."""
        self._supervisor.figures.refused_clients += 1
        self._tell(say.CLIENT_REFUSED, why, process, jobs)

    def _tell(
        self, record: LogMessage, why: str, process: int | None, jobs: Sequence[str]
    ) -> None:
        about = {"pid": process, "reason": why, "jobs": len(jobs)}
        about["functions"] = list_functions(Counter(jobs))
        self._supervisor.log.now(record, about)

    def end(
        self, client: AgentClient, why: Exception | str, *, is_silent: bool = False
    ) -> None:
        """Give up the jobs of a client that is gone, has broken the rules, or is not heard."""
        if self._clients.pop(client.number, None) is None:
            return
        jobs = client.functions()
        if isinstance(why, Exception):
            kind = "" if isinstance(why, ProtocolError) else f"{type(why).__name__}: "
            self.refuse(f"{kind}{why}", client.process, jobs)
        elif jobs or is_silent:
            self._supervisor.figures.lost_clients += 1
            self._tell(say.CLIENT_LOST, why, client.process, jobs)
        self._jobs.close(client.number)
        client.close()
        self.turn_soon()

    def _on_beat(self, now: float) -> None:
        if now - self._beat.due > self._beat_every:
            self._jobs.held_up(now)
        for number in self._jobs.lapsed(now):
            why = f"nothing was heard of it for {self._lease:g} s (client_timeout)"
            self.end(self._clients[number], why, is_silent=True)
        self._tell_lanes()
        for client in self._clients.values():
            client.beat(now)
        self._beat.set_in(self._beat_every)

    # What the pool gets.

    def look(self) -> None:
        """Look whether the pool has room for jobs that come now."""
        self._jobs.look(self._supervisor.unserved, self._lanes)

    def turn_soon(self) -> None:
        """Have a turn with what else happens in this turn of the loop."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self.turn)

    def settled(self, client: AgentClient) -> None:
        """Hear that a job has ended; tell its client at once if that waits for no other one.

        The pool may be in the middle of a decision, so it gets no job now.
        """
        if client.jobs or self._jobs.waiting or self._closing:
            self.turn_soon()
        else:
            client.push()

    def turn(self) -> None:
        """Give the pool what it has room for, and say what there is to say."""
        self._turn_is_due = False
        while self._jobs.waiting:
            self.look()
            released = self._jobs.release(self._loop.time())
            if not released:
                break
            self._begin(released)
        self._tell_lanes()
        now = self._loop.time()
        for client in self._clients.values():
            client.flush(now)
        self._idle.set()

    def _begin(self, released: list[tuple[int, int]]) -> None:
        """Give jobs to the pool, or tell their clients first that they begin."""
        begun: dict[int, list[int]] = {}
        for number, job in released:
            begun.setdefault(number, []).append(job)
        now = self._loop.time()
        for number, jobs in begun.items():
            self._clients[number].begin(jobs, now)

    @property
    def _lanes(self) -> int:
        return self._supervisor.most_workers * self._supervisor.concurrency

    def _tell_lanes(self) -> None:
        """Tell all clients if the pool has been resized."""
        lanes = self._lanes
        if lanes != self._told_lanes:
            self._told_lanes = lanes
            for client in self._clients.values():
                client.put(Message(Kind.LANES, priority=lanes))
