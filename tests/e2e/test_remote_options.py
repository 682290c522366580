"""What becomes of each option of a job in a remote pool, as a job and as a broadcast.

Who adds an option adds a row to :data:`TABLE`, and the tests hold the real ends to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import fields, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from asyncpool import LeaseKeeper, Pool
from asyncpool._core.options import OPTIONS, JobOptions
from asyncpool._remote.client import Client
from asyncpool.sharedpool import SharedPool
from tests.helpers import beats, jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import client_of, options_in
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.shared_pools import pool_and_client


class Fate(Enum):
    """What becomes of an option in one form."""

    SENT = auto()  # the agent's pool has it
    KEPT = auto()  # the agent's pool has the default, and the client acts by it
    OWN = auto()  # the agent's pool has one of its own in its place
    REFUSED = auto()  # the client refuses it
    NONE = auto()  # nobody can give it in this form


SENT, KEPT, OWN, REFUSED, NONE = Fate


class Row(NamedTuple):
    """One option.

    Attributes:
        value: Another value than the default; ``None`` if a test makes it.
        job: What becomes of it in a job.
        session: Whether the calls of a session can have it.
        broadcast: What becomes of it in a broadcast.
        why: Why it is not sent everywhere.
    """

    value: Any
    job: Fate
    session: bool
    broadcast: Fate
    why: str = ""


TABLE = {
    "max_attempts": Row(
        3, KEPT, False, KEPT, "the client counts attempts; a broadcast has one"
    ),
    "retry_on": Row((LookupError,), KEPT, True, KEPT, "as for max_attempts"),
    "retire_on": Row(("builtins.LookupError",), SENT, True, SENT),
    "timeout": Row(1001.0, SENT, True, SENT),
    "queue_timeout": Row(1002.0, SENT, True, SENT),
    "heartbeat_timeout": Row(1003.0, SENT, True, SENT),
    "deadline": Row(None, SENT, True, SENT),
    "on_cancel": Row("kill", SENT, True, SENT),
    "cancel_grace": Row(1005.0, SENT, True, SENT),
    "priority": Row(
        -3,
        KEPT,
        False,
        KEPT,
        "the client and the agent order this client's jobs by it, not those of all clients; a "
        "broadcast comes before all jobs",
    ),
    "key": Row(99, SENT, False, REFUSED),
    "lease": Row(
        None, OWN, False, REFUSED, "the client's keeper renews it, the agent watches"
    ),
    "prefetch": Row(7, SENT, True, KEPT, "only a stream has it"),
    "codec": Row(
        None, OWN, True, KEPT, "the client packs by it, and the agent reads no call"
    ),
    # What users do not choose.
    "prior_attempts": Row(2, SENT, True, NONE, "only jobs have several attempts"),
    "details": Row(None, KEPT, True, NONE, "they travel with each job"),
    "trace": Row(None, KEPT, True, NONE, "it travels ahead of the jobs that have it"),
    "via": Row("stream", SENT, True, NONE, "they are plain calls"),
    "hold": Row(None, KEPT, True, NONE, "it is the client that is held open"),
    "session": Row(
        None, KEPT, True, NONE, "see the test of the calls of a session, which have it"
    ),
    "name": Row("named", KEPT, True, OWN, "it travels with the function"),
}


def leaves(options: JobOptions) -> dict[str, Any]:
    """Return each option by its name."""
    return {it.name: getattr(options, it.name) for it in fields(options) if it.init}


DEFAULTS = leaves(JobOptions())


def values_for(form: str, **others: Any) -> dict[str, Any]:
    """Return another value than the default for each option that the client takes in this form."""
    deadline = asyncio.get_running_loop().time() + 1004.0
    values = {name: row.value for name, row in TABLE.items() if row.value is not None}
    values |= {"deadline": deadline, "hold": object()} | others
    return {
        name: value
        for name, value in values.items()
        if getattr(TABLE[name], form) not in (REFUSED, NONE)
    }


def assert_told(options: JobOptions, form: str, given: dict[str, Any]) -> None:
    """Check what an agent's pool has against the table."""
    for name, value in leaves(options).items():
        fate: Fate = getattr(TABLE[name], form)
        if fate is SENT and name in {"deadline", "queue_timeout"}:
            # What is left of it travels, and the way takes a moment.
            assert value == pytest.approx(given[name], abs=PATIENCE), name
        elif fate is SENT:
            assert value == given[name], name
        elif fate is OWN:
            assert value is not None, name
            assert value is not given.get(name), name
        else:
            assert value == DEFAULTS[name], name


def test_the_table_has_every_option() -> None:
    assert TABLE.keys() == DEFAULTS.keys()
    assert TABLE.keys() >= OPTIONS
    for name, row in TABLE.items():
        assert row.why or {row.job, row.broadcast} <= {SENT, REFUSED}, (
            f"why is {name} not sent?"
        )
        assert row.value is None or row.value != DEFAULTS[name], name


@contextlib.asynccontextmanager
async def ends(tmp_path: Path) -> AsyncGenerator[tuple[Pool, SharedPool, Client, Gate]]:
    """Yield an agent's pool, its client as users see it and from within, and a gate."""
    async with (
        patience(),
        Gate() as gate,
        pool_and_client(tmp_path, workers=1) as (pool, shared),
    ):
        yield pool, shared, client_of(shared), gate


async def extend(lease: str) -> None:
    del lease


@BOTH_LOOPS
@pytest.mark.parametrize("begun", [0, 2])
async def test_of_a_job(tmp_path: Path, begun: int) -> None:
    keeper = LeaseKeeper(extend, max_rate=100.0, interval=1.0)
    async with ends(tmp_path) as (pool, _, client, gate), keeper:
        given = values_for("job", lease=(keeper, "mine"), prior_attempts=begun)
        job = client.traffic.submit(
            beats.count_at, (gate.path,), {}, JobOptions(**given)
        )
        await gate.visitor("beat 0")
        if begun:
            assert options_in(pool).queue_timeout is None  # for the first attempt
        else:
            assert_told(options_in(pool), "job", given)
        assert options_in(pool).prior_attempts == begun
        job.cancel()


@BOTH_LOOPS
async def test_of_the_calls_of_a_session(tmp_path: Path) -> None:
    limits = {n: TABLE[n].value for n in ("timeout", "on_cancel", "cancel_grace")}
    async with ends(tmp_path) as (pool, shared, _, gate), shared.worker() as mine:
        job = mine.options(**limits).submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        options = options_in(pool)
        assert options.session is not None
        found = leaves(options)
        assert {name: found[name] for name in limits} == limits
        visitor.release()
        await job


@BOTH_LOOPS
async def test_of_a_broadcast(tmp_path: Path) -> None:
    async with ends(tmp_path) as (pool, _, client, gate):
        given = values_for("broadcast")
        call = client.broadcasts.broadcast(
            (jobs.wait_at, (gate.path,), {}), JobOptions(**given)
        )
        task = asyncio.create_task(call)
        visitor = await gate.visitor()
        told = options_in(pool)
        assert told.via == "broadcast"  # as the agent's pool says by itself
        assert_told(replace(told, via="submit"), "broadcast", given)
        visitor.release()
        assert await task == {0: "go"}


@BOTH_LOOPS
async def test_what_is_refused(tmp_path: Path) -> None:
    keeper = LeaseKeeper(extend, max_rate=100.0, interval=1.0)
    async with ends(tmp_path) as (_, shared, _, _):
        for name, row in TABLE.items():
            given: Any = {name: (keeper, "mine") if name == "lease" else row.value}
            if not row.session:
                with pytest.raises(ValueError, match=name):
                    shared.options(**given).worker()
            if row.broadcast is REFUSED:
                with pytest.raises(ValueError, match=name):
                    await shared.options(**given).broadcast(jobs.pid)
