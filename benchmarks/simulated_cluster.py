"""A thousand agents and one client, by the pure core under a virtual clock.

``python -m benchmarks.simulated_cluster --jobs 1000000 --picture docs/img/simulated-cluster.svg``

What decides is the code of the package: Router, Window and Turns, with packed batches.  What is imagined is the time: the network's, the jobs', and
the lives of the nodes.  Only the client's own work is measured by a real clock; it takes no virtual time.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import resource
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncpool._core.functions import JobTraits
from asyncpool._remote.messages import (
    Kind,
    Message,
    pack_batches,
    pack_end,
    unpack_batch,
)
from asyncpool._remote.router import CREDITS, Router, Window
from asyncpool._remote.turns import Turns
from asyncpool._wire.messages import pack_numbers

_MICRO = 1e6
_PATIENCE, _BEAT = 90.0, 7.5  # seconds
_LONGEST = 60.0  # seconds that a job may take
_BACK_AFTER = 120.0  # seconds until a lost node has a successor
_PAYLOAD = bytes(100)


class World:
    """The virtual time, and what happens next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._next: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []

    def later(self, seconds: float, what: Callable[..., Any], *args: Any) -> None:
        heapq.heappush(self._next, (self.now + seconds, next(self._order), what, args))

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            self.now, _, what, args = heapq.heappop(self._next)
            what(*args)


@dataclass
class Figures:
    """What a run has shown."""

    batches: int = 0
    bytes: int = 0
    cpu: float = 0.0
    lost: int = 0
    again: int = 0
    busy: float = 0.0
    workers: int = 0
    memory: float = 0.0
    seconds: float = 0.0
    curve: list[float] = field(default_factory=list)

    def idle(self, lanes: int) -> float:
        return 1 - self.busy / (lanes * self.seconds)


def credits_or_window(text: str) -> int | None:
    return None if text == "window" else int(text)


def named(agent_credits: int | None) -> str:
    return "the window" if agent_credits is None else f"{agent_credits} credits"


class Agent:
    """A node: an agent whose pool takes as long as the jobs say."""

    def __init__(self, cluster: Cluster, number: int, lanes: int) -> None:
        self.cluster, self.number = cluster, number
        self.alive = True
        self.heard_at = cluster.world.now
        self.window = Window(cluster.credits, lanes)
        self.turns = Turns()
        self.turns.open(1)
        self.put: list[bytes] = []
        self._traits = JobTraits()
        self._queue: deque[int] = deque()
        self._busy = 0

    def on_bytes(self, data: bytes) -> None:
        if not self.alive:
            return
        for message in unpack_batch(data)[1]:
            self.turns.add(1, message.job, 0, self._traits)
        self._turn()

    def _turn(self) -> None:
        lanes = self.window.lanes
        while True:
            while self._queue and self._busy < lanes:
                job = self._queue.popleft()
                self._busy += 1
                self.cluster.count(1)
                self.cluster.world.later(self.cluster.durations[job], self._ended, job)
            self.turns.look(len(self._queue), lanes)
            released = [job for _, job in self.turns.release(bool)]
            if not released:
                break
            self.put.append(Message(Kind.BEGAN, payload=pack_numbers(released)).pack())
            self._queue += released
        if self.put:
            self.send()

    def _ended(self, job: int) -> None:
        if not self.alive:
            return
        self._busy -= 1
        self.cluster.count(-1)
        self._traits.note(self.cluster.durations[job] * _MICRO)
        self.turns.ended(1, job)
        self.put.append(pack_end(Kind.VALUE, job, _PAYLOAD))
        self._turn()

    def send(self) -> None:
        put, self.put = self.put, []
        for data in pack_batches(put, int(self.cluster.world.now * _MICRO)):
            self.cluster.carry(self.cluster.on_bytes, self.number, data)

    def die(self) -> None:
        self.alive = False
        self.cluster.count(-self._busy)


class Cluster:
    """The client, and all that it has."""

    def __init__(self, args: argparse.Namespace, agent_credits: int | None) -> None:
        self.world, self.figures = World(), Figures()
        self.total = args.jobs
        self.credits = CREDITS if agent_credits is None else agent_credits
        self._windows = agent_credits is None
        self._lanes = itertools.cycle(args.lanes)
        self.lanes = sum(itertools.islice(itertools.cycle(args.lanes), args.agents))
        self._chance = random.Random(args.seed)
        self.durations = array(
            "d",
            (
                min(self._chance.lognormvariate(0.7, 1.5), _LONGEST)
                for _ in range(self.total)
            ),
        )
        self._router = Router()
        self._agents: dict[int, Agent] = {}
        self._numbers = itertools.count()
        self._deaths = args.losses / 3600
        self._done = 0
        self._running, self._since = 0, 0.0
        self._agents_at_first = args.agents
        self._traits = JobTraits()

    def run(self) -> Figures:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.perf_counter()
        for job in range(self.total):
            self._router.submit(job, self._traits, 0)
        self.figures.cpu += time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.figures.memory = 1024 * (after - before) / self.total
        for _ in range(self._agents_at_first):
            self._join()
        self._watch()
        self.world.run(lambda: self._done == self.total)
        self.count(0)
        self.figures.seconds = self.world.now
        return self.figures

    def count(self, change: int) -> None:
        now = self.world.now
        self.figures.busy += self._running * (now - self._since)
        self._running, self._since = self._running + change, now

    def carry(self, to: Callable[..., Any], *args: Any) -> None:
        self.figures.batches += 1
        self.figures.bytes += len(args[-1])
        # In order, as a carrier brings them: a constant latency.
        self.world.later(0.0005, to, *args)

    def on_bytes(self, number: int, data: bytes) -> None:
        begin = time.perf_counter()
        agent = self._agents.get(number)
        if agent is not None:
            self._read(agent, data)
        self.figures.cpu += time.perf_counter() - begin

    def _read(self, agent: Agent, data: bytes) -> None:
        agent.heard_at = now = self.world.now
        for message in unpack_batch(data)[1]:
            if message.kind is Kind.VALUE and message.job in agent.window.jobs:
                agent.window.note_end(message.job)
                self._done += 1
        agent.window.look(now, is_limited=self._windows)
        self._give(agent.number, self._router.refill(agent.number))

    def _give(self, number: int, jobs: list[int]) -> None:
        if jobs:
            messages = [Message(Kind.JOB, job, payload=_PAYLOAD).pack() for job in jobs]
            for data in pack_batches(messages):
                self.carry(self._agents[number].on_bytes, data)

    def _give_pairs(self, pairs: list[tuple[int, int]]) -> None:
        for number, job in pairs:
            self._give(number, [job])

    def _join(self, lanes: int = 0) -> None:
        number, now = next(self._numbers), self.world.now
        agent = Agent(self, number, lanes or next(self._lanes))
        self._agents[number] = agent
        self.world.later(self._chance.expovariate(self._deaths), self._die, agent)
        agent.window.look(now, is_limited=self._windows)
        pairs = self._router.join(number, agent.window, is_ready=True)
        self._give(number, [job for _, job in pairs])

    def _die(self, agent: Agent) -> None:
        self.figures.lost += 1
        agent.die()
        self.world.later(_BACK_AFTER, self._join, agent.window.lanes)

    def _watch(self) -> None:
        """Send beats both ways, and look who was not heard."""
        self.figures.curve.append(self._running / self.lanes)
        begin = time.perf_counter()
        for agent in [*self._agents.values()]:
            if self.world.now - agent.heard_at >= _PATIENCE:
                self._lose(agent)
        self.figures.cpu += time.perf_counter() - begin
        for agent in self._agents.values():
            if agent.alive:
                agent.send()
        self.world.later(_BEAT, self._watch)

    def _lose(self, agent: Agent) -> None:
        del self._agents[agent.number]
        pairs = self._router.lose(agent.number)
        jobs = dict.fromkeys(agent.window.jobs, self._traits)
        self.figures.again += len(jobs)
        self._give_pairs([*pairs, *self._router.requeue(jobs)])


def picture(curves: dict[str, list[float]], path: Path) -> None:
    """Draw which share of the workers was busy, for each number of credits."""
    longest = max(map(len, curves.values()))
    colours = ("#3366cc", "#dc3912", "#109618", "#ff9900")
    parts = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 300" '
            'font-family="sans-serif" font-size="13">'
        ),
        '<rect width="720" height="300" fill="white"/>',
        '<path d="M50 20V250H700" fill="none" stroke="#555"/>',
        '<text x="6" y="26">100 %</text><text x="22" y="254">0 %</text>',
        f'<text x="560" y="270">{longest * _BEAT:.0f} seconds</text>',
        '<text x="50" y="14">share of the workers that run a job</text>',
    ]
    for place, (name, curve) in enumerate(curves.items()):
        points = " ".join(
            f"{50 + 640 * at / longest:.1f},{250 - 230 * share:.1f}"
            for at, share in enumerate(curve)
        )
        colour, left = colours[place % len(colours)], 50 + 140 * place
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<text x="{left}" y="292" fill="{colour}">{name}</text>',
        ]
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument(
        "--lanes", type=int, nargs="+", default=[16], help="of an agent, in turn"
    )
    parser.add_argument(
        "--credits",
        type=credits_or_window,
        nargs="+",
        default=[None, CREDITS],
        help="of an agent; 'window' is what a pool with several agents does",
    )
    parser.add_argument("--losses", type=float, default=0.01, help="of a node, an hour")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    curves: dict[str, list[float]] = {}
    for agent_credits in args.credits:
        cluster = Cluster(args, agent_credits)
        begin = time.perf_counter()
        figures = cluster.run()
        curves[named(agent_credits)] = figures.curve
        lanes = cluster.lanes
        least = sum(cluster.durations) / lanes
        print(
            f"{named(agent_credits)}: {figures.seconds:.0f} s, at least {least:.0f}; "
            f"idle {figures.idle(lanes):.1%}; "
            f"client {1e6 * figures.cpu / args.jobs:.1f} us, "
            f"{figures.batches / args.jobs:.2f} batches and "
            f"{figures.bytes / args.jobs:.0f} bytes sent, "
            f"{figures.memory:.0f} bytes kept a job; "
            f"{figures.lost} nodes lost, {figures.again} jobs begun again "
            f"({time.perf_counter() - begin:.0f} s)",
            flush=True,
        )
    if args.picture:
        picture(curves, args.picture)


if __name__ == "__main__":
    main()
