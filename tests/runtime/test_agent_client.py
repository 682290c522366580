"""What an agent keeps of a client."""

from __future__ import annotations

from typing import Any

from asyncpool._core.remote.agent_jobs import AgentJobs
from asyncpool._core.remote_wire.reliable_link import ReliableLink
from asyncpool._core.remote_wire.remote_messages import Kind, Message
from asyncpool._runtime.agent.agent_client import AgentClient, ClientKeeper
from tests.helpers.carriers import Network
from tests.helpers.loops import BOTH_LOOPS

pytestmark = BOTH_LOOPS


async def test_nothing_is_kept_of_a_lease_whose_job_is_not_here() -> None:
    """A lease is often extended while its job ends; the agent would keep each such word."""
    nothing: Any = None
    jobs = AgentJobs(credits=8, most_clients=1, lease=60.0)
    number = jobs.open(0.0)
    assert number == 1
    here, _ = Network(0, 0.0).way()
    told = list[int]()

    class NoTurns:
        def look(self) -> None:
            pass

        def turn(self) -> None:
            pass

    class Keeper(ClientKeeper):
        def extend(self, number: int, until: float) -> None:
            del until
            told.append(number)

    class Relay:
        stored = None

    turns: Any = NoTurns()
    relay: Any = Relay()
    client = AgentClient(
        number,
        here,
        jobs=jobs,
        relay=relay,
        answers=nothing,
        turns=turns,
        end=lambda *_: None,
        page=None,
    )
    client.keeper = Keeper(nothing)
    link = ReliableLink(1)
    link.put(Message(Kind.FENCE, 7, deadline=1.0).pack())
    here.on_bytes(link.next_batch().pack())
    assert not told
