"""The contract of a main thread that serves several jobs: which begins when, and what is sent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from asyncpool import current_job
from asyncpool._core.map import chunks
from asyncpool._core.wire.frames import Frame, FrameDecoder
from asyncpool._core.wire.messages import WorkerConfig
from asyncpool._core.wire.page import LANE_OUTCOME_SIZE
from asyncpool._worker.channel.large_buffers import LargeBuffers
from asyncpool._worker.channel.segments import Segments
from asyncpool._worker.job_ending.job_claims import JobClaims
from asyncpool._worker.lanes.concurrent_jobs import ConcurrentJobs
from asyncpool.errors import ProtocolError
from tests.helpers.inside import page_of
from tests.worker.by_hand import context_frame, function_frame, job_frame
from tests.worker.in_process import Loops, Quiet, SharedPage, opened

WIDTH = 3


class Counted(socket.socket):
    """Counts what is sent.

    Attributes:
        sizes: How much that was, each time.
    """

    sizes: list[int]

    def sendall(self, data: Any, *flags: int) -> None:
        """Send it."""
        self.sizes.append(len(data))
        super().sendall(data, *flags)


class Control:
    """What the main thread needs of the control thread, where there is none."""

    def __init__(self) -> None:
        self.interrupts = Quiet()

    def ring(self) -> None:
        """Say nothing."""


class Hand:
    """A worker that runs three jobs at once, in this process.

    Attributes:
        claims: Which job is the next.
        loops: What coroutines run in.
        page: What is noted.
        jobs: Its end of the channel.
        door: The pool's end.
    """

    current: Hand

    def __init__(self, page: SharedPage, loops: Loops, control: Control) -> None:
        self.door, jobs_end = socket.socketpair()
        self.jobs = Counted(fileno=jobs_end.detach())
        self.jobs.sizes = []
        self.page = page.seen
        self.claims = JobClaims()
        self.loops = loops
        config = WorkerConfig((), None, 1 << 20, concurrency=WIDTH)
        cargo = LargeBuffers(self.jobs, Segments())
        parts: Any = SimpleNamespace(
            page_fd=page.fd,
            jobs=self.jobs,
            control=control,
            claims=self.claims,
            interrupts=control.interrupts,
            coroutines=loops,
        )
        self.several = ConcurrentJobs(config, parts, cargo)
        Hand.current = self

    def serve(self, *frames: bytes, more: bool = False) -> None:
        """Have it run what is in *frames*, and end, unless there is to come *more*."""
        self.door.sendall(b"".join(frames))
        if not more:
            self.door.shutdown(socket.SHUT_WR)
        self.several.serve()

    def heard(self) -> list[tuple[int, Any]]:
        """Return the number of each job that is done by now, and what has come of it."""
        decoder = FrameDecoder(max_payload=1 << 20)
        frames: list[Frame] = []
        try:
            while data := self.door.recv(1 << 20, socket.MSG_DONTWAIT):
                frames += decoder.feed(data)
        except BlockingIOError:
            pass
        return [(frame.job, opened(frame.kind, frame.payload)) for frame in frames]

    def close(self) -> None:
        """Let go of both ends."""
        self.door.close()
        self.jobs.close()


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hand]:
    # What a worker has for itself in its process.
    monkeypatch.setattr(
        "asyncpool._worker.lanes.concurrent_jobs.install", lambda _: None
    )
    monkeypatch.setattr(chunks, "install", lambda _: None)
    control = Control()
    loops = Loops(control.interrupts)
    with (
        closing(SharedPage(WIDTH)) as page,
        closing(loops),
        closing(Hand(page, loops, control)) as found,
    ):
        log.clear()
        yield found
        page_of(found.several.lanes).close()


# What jobs do.

log: list[Any] = []


def note(word: Any) -> Any:
    log.append(word)
    return word


def heard_so_far() -> list[int]:
    """Return which jobs the pool has heard of when this one runs."""
    return [job for job, _ in Hand.current.heard()]


def close_turns() -> str:
    Hand.current.claims.closed = True
    return "the last"


def hang_up() -> None:
    Hand.current.door.close()


def refuse() -> None:
    raise LookupError("never")


async def hang_up_later() -> None:
    await asyncio.sleep(0)
    hang_up()


async def send_more(*frames: bytes) -> None:
    """Say more when the loop runs, and end in the turn in which that is read."""
    Hand.current.door.sendall(b"".join(frames))
    Hand.current.door.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0)


async def meet(count: int) -> int:
    """Wait until so many are there, and say how many those are."""
    log.append("meet")
    while log.count("meet") < count:  # noqa: ASYNC110 - turns are what is counted here
        await asyncio.sleep(0)
    return log.count("meet")


async def pass_at(word: str, claims: int) -> str:
    """Take so many turns of the loop."""
    log.append(f"{word} begins")
    for _ in range(claims):
        await asyncio.sleep(0)
    log.append(f"{word} ends")
    return word


async def clean_up(claims: int) -> None:
    """Take so many turns to end, when it is cancelled."""
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(claims):
            await asyncio.sleep(0)
        log.append("clean")


async def pad(size: int) -> bytes:
    return bytes(size)


def who() -> tuple[int, int]:
    job = current_job()
    return job.id, job.attempt


async def who_later() -> tuple[int, float | None]:
    await asyncio.sleep(0)
    job = current_job()
    return job.id, job.deadline


# Plain ones.


def test_plain_jobs_run_one_after_the_other(hand: Hand) -> None:
    hand.serve(*(job_frame(job, note, job) for job in range(1, 8)))
    assert log == [*range(1, 8)]
    assert hand.heard() == [(job, job) for job in range(1, 8)]


def test_an_outcome_is_sent_before_the_next_job_begins(hand: Hand) -> None:
    hand.serve(*(job_frame(job, heard_so_far) for job in (1, 2, 3)))
    assert hand.heard() == [(3, [2])]  # the others were heard by those behind them
    assert len(hand.jobs.sizes) == 3


def test_nor_does_one_begin_in_the_turn_in_which_another_has_ended(hand: Hand) -> None:
    # It might note its outcome in the same lane, and the worker die of the next.
    hand.serve(job_frame(1, send_more, job_frame(2, heard_so_far)), more=True)
    assert hand.heard() == [(2, [1])]


def test_an_error_is_an_outcome_like_any_other(hand: Hand) -> None:
    hand.serve(job_frame(1, int, "x"), job_frame(2, note, 2))
    (one, error), other = hand.heard()
    assert (one, type(error)) == (1, ValueError)
    assert other == (2, 2)


def test_the_traceback_of_an_error_begins_in_the_function(hand: Hand) -> None:
    hand.serve(job_frame(1, refuse))
    [(_, error)] = hand.heard()
    assert type(error) is LookupError
    shown = str(error.__cause__).splitlines()
    assert [it.split()[-1] for it in shown if it.startswith("  File")] == ["refuse"]


def test_functions_are_known_by_number_and_contexts_are_for_those_behind(
    hand: Hand,
) -> None:
    frames = [
        function_frame(5, who_later),
        job_frame(1, who_later, number=5),
        context_frame(timeout=60.0),
        job_frame(2, who_later, number=5),
        job_frame(3, who),
    ]
    hand.serve(*frames)
    found = dict(hand.heard())
    assert found[1] == (1, None)
    assert found[2][0] == 2
    assert found[2][1] is not None
    assert found[3] == (3, 1)


# Coroutines, as many at once as there are lanes.


def test_as_many_run_at_once_as_there_are_lanes(hand: Hand) -> None:
    hand.serve(*(job_frame(job, meet, WIDTH) for job in range(1, WIDTH + 1)))
    assert sorted(hand.heard()) == [(1, WIDTH), (2, WIDTH), (3, WIDTH)]


def test_and_no_more(hand: Hand) -> None:
    frames = [job_frame(job, pass_at, str(job), 2 * job) for job in range(1, 5)]
    hand.serve(*frames)
    begun = [word for word in log if word.endswith("begins")]
    assert begun == [f"{job} begins" for job in range(1, 5)], "in their order"
    assert log.index("4 begins") > log.index("1 ends")
    assert log.index("4 begins") < log.index("2 ends"), "as soon as there is a lane"
    assert sorted(hand.heard()) == [(job, str(job)) for job in range(1, 5)]


def test_between_two_plain_ones_others_go_on(hand: Hand) -> None:
    plain = [job_frame(job, note, f"plain {job}") for job in (3, 4, 5)]
    hand.serve(
        job_frame(1, pass_at, "long", 100),
        job_frame(2, send_more, *plain, job_frame(6, meet, 1)),
        more=True,
    )
    assert log == [
        "long begins",
        "plain 3",
        "plain 4",
        "plain 5",
        "meet",
        "long ends",
    ]
    assert [job for job, _ in hand.heard()] == [2, 3, 4, 5, 6, 1]
    # In turns of their own, so that each is sent in another one.
    assert len(hand.jobs.sizes) == 6


def test_what_comes_while_they_run_runs_beside_them(hand: Hand) -> None:
    # It comes when the first one runs already, which waits for it.
    hand.serve(
        job_frame(1, meet, 2),
        job_frame(2, send_more, job_frame(3, meet, 2)),
        more=True,
    )
    assert sorted(hand.heard(), key=lambda found: found[0]) == [
        (1, 2),
        (2, None),
        (3, 2),
    ]


def test_outcomes_of_one_turn_go_out_together_and_are_noted_before(hand: Hand) -> None:
    hand.serve(*(job_frame(job, meet, WIDTH) for job in range(1, WIDTH + 1)))
    assert len(hand.jobs.sizes) < WIDTH
    noted = hand.page.outcomes()
    assert sorted(noted) == [(1, 1), (2, 1), (3, 1)]
    assert len(hand.heard()) == WIDTH


def test_one_for_which_there_is_no_room_is_sent_at_once(hand: Hand) -> None:
    size = LANE_OUTCOME_SIZE
    hand.serve(*(job_frame(job, pad, size) for job in range(1, WIDTH + 1)))
    assert len(hand.jobs.sizes) == WIDTH
    assert hand.page.outcomes() == {}
    assert hand.heard() == [(job, bytes(size)) for job in range(1, WIDTH + 1)]


# What is not to begin.


@pytest.mark.parametrize("function", [note, pad], ids=["plain", "coroutines"])
def test_what_was_revoked_does_not_begin(
    hand: Hand, function: Callable[..., Any]
) -> None:
    assert hand.claims.revoke([2, 3]) == [2, 3]
    hand.serve(*(job_frame(job, function, job) for job in range(1, 6)))
    assert [job for job, _ in hand.heard()] == [1, 4, 5]
    assert hand.claims.taken == 5


def test_nothing_begins_when_the_worker_retires_and_what_runs_ends(hand: Hand) -> None:
    hand.serve(
        job_frame(1, pass_at, "long", 4),
        job_frame(2, close_turns),
        job_frame(3, note, "never"),
        more=True,
    )
    assert sorted(hand.heard()) == [(1, "long"), (2, "the last")]
    assert log == ["long begins", "long ends"]


def test_what_runs_ends_when_nothing_more_can_come(hand: Hand) -> None:
    hand.serve(*(job_frame(job, pass_at, str(job), 3) for job in range(1, 9)))
    assert len(hand.heard()) == 8


def test_an_end_without_any_job(hand: Hand) -> None:
    hand.serve()
    assert hand.heard() == []


# When it cannot go on.


def test_a_plain_job_whose_outcome_nobody_takes_is_the_last(hand: Hand) -> None:
    with pytest.raises(BrokenPipeError):
        hand.serve(job_frame(1, hang_up), job_frame(2, note, "never"), more=True)
    assert log == []


@pytest.mark.parametrize("size", [1, LANE_OUTCOME_SIZE], ids=["noted", "sent at once"])
def test_nor_do_coroutines_go_on(hand: Hand, size: int) -> None:
    frames = [
        job_frame(1, pass_at, "long", 1000),
        job_frame(2, pad, size),
        job_frame(3, hang_up),
    ]
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        hand.serve(*frames, more=True)
    assert "long ends" not in log


def test_who_is_cancelled_then_may_clean_up(hand: Hand) -> None:
    frames = [
        job_frame(1, clean_up, 5),
        job_frame(2, clean_up, 1),
        job_frame(3, hang_up_later),
    ]
    with pytest.raises(BrokenPipeError):
        hand.serve(*frames, more=True)
    hand.loops.close()
    assert log == ["clean", "clean"]


def test_nonsense_on_the_channel_ends_it(hand: Hand) -> None:
    with pytest.raises(ProtocolError, match="version 255"):
        hand.serve(
            job_frame(1, pass_at, "long", 1000),
            job_frame(2, send_more, b"\xff" * 99),
            more=True,
        )
    assert "long ends" not in log
