"""How evenly connections are spread that come all at once."""

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack

from benchmarks.base import Figure
from benchmarks.cluster.answer import Answer, request
from benchmarks.cluster.base import Finding, Scale, Trial
from benchmarks.cluster.load import LIMIT, new_socket
from benchmarks.cluster.running import Running

WORKERS, CONNECTIONS = 4, 400


def measure(row: str, _: Scale) -> Finding:
    """Open 400 connections at once and keep them; see which of 4 workers has how many.

    Each asks once, as soon as it is open, to learn who has it.
    """
    with Running(row, WORKERS) as server:
        workers = asyncio.run(open_all(server.port))
    return conclude(workers)


async def open_all(port: int) -> list[int]:
    """Return the worker of each connection."""
    with ExitStack() as stack:
        plugs = [stack.enter_context(new_socket()) for _ in range(CONNECTIONS)]
        async with asyncio.timeout(3 * LIMIT):
            return await asyncio.gather(*(open_one(plug, port) for plug in plugs))


async def open_one(plug: socket.socket, port: int) -> int:
    loop, answer = asyncio.get_running_loop(), Answer()
    await loop.sock_connect(plug, ("127.0.0.1", port))
    await loop.sock_sendall(plug, request("/"))
    while not answer.is_complete:
        answer.feed(await loop.sock_recv(plug, 4096))
    return answer.worker


def conclude(workers: list[int]) -> Finding:
    shares = [count for _, count in Counter(workers).most_common()]
    shares += [0] * (WORKERS - len(shares))
    note = "/".join(map(str, shares))
    figures = {"most": float(shares[0]), "least": float(shares[-1])}
    if not shares[-1]:
        return Finding(figures, "leaves some idle", note)
    return Finding({"ratio": shares[0] / shares[-1], **figures}, note=note)


TRIAL = Trial(
    "balance",
    f"{CONNECTIONS} connections at once, {WORKERS} workers",
    (
        Figure("ratio", "most / least", "x"),
        Figure("most", "most", ""),
        Figure("least", "least", ""),
    ),
    measure,
)
