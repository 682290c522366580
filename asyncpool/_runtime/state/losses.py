"""Decide what becomes of the jobs of a dead worker."""

from __future__ import annotations

from typing import Any, NamedTuple

from asyncpool._core.policies.attempts import costs_attempt
from asyncpool._core.slots.slots import Slot
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.job.outcomes import Failed
from asyncpool._runtime.state.job_errors import delivery_of, stacks_of, timeout_error
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import CrashKind, Delivery, TimeLimit


def overdue(job: Job[Any], handle: WorkerHandle) -> Failed:
    """Return the error of a job that has exceeded a time limit, whatever has ended it since."""
    error = timeout_error(job, stacks_of(job, handle))
    return Failed(error, may_retry=job._exceeded is not TimeLimit.DEADLINE)


def _delivery_despite_lies(job: Job[Any], handle: WorkerHandle, slot: Slot) -> Delivery:
    delivery = delivery_of(job, handle)
    # A worker that broke the protocol may have erased its page, so that its jobs run twice.  If
    # it had the job before that, and it was the job's turn, then the job has begun.
    had_before = job._frame_end <= handle.taken_in_trust
    if delivery is Delivery.SENT and had_before and slot.in_flight.runs(job.id):
        return Delivery.STARTED
    return delivery


class Loss(NamedTuple):
    """What the death of a worker means for one of its jobs.

    Attributes:
        job: The job.
        delivery: How far it had got on its way.
        begun: Whether it had begun.
        blamed: Whether it may be the cause, or its time was over.
        costs: Whether it has lost an attempt.
        again: Whether it goes back to the queue.
        error: What its caller gets if its time was over before the death.
    """

    job: Job[Any]
    delivery: Delivery
    begun: bool
    blamed: bool
    costs: bool
    again: bool
    error: BaseException | None


def _about_to_begin(
    found: list[tuple[Job[Any], Delivery]], handle: WorkerHandle, slot: Slot
) -> Job[Any] | None:
    """Return the job that a dead worker would have begun next, if it had room for that.

    That one may be the cause of the death, but not those behind it.
    """
    waiting = (job for job, delivery in found if delivery is not Delivery.STARTED)
    first = next(waiting, None)
    # The worker cannot have begun a large call that was still on its way.
    if first is None or handle.outbox.loading or not slot.in_flight.runs(first.id):
        return None
    return first


def _judge_one(
    job: Job[Any],
    delivery: Delivery,
    handle: WorkerHandle,
    kind: CrashKind,
    *,
    suspected: bool,
) -> Loss:
    """Return what the death of its worker means for *job*.

    Args:
        job: The job.
        delivery: How far it had got.
        handle: The worker.
        kind: What the worker died of.
        suspected: Whether the job may be the cause although it had not begun.
    """
    policy, returned = job._attempt_policy, job._times_returned
    begun = delivery is Delivery.STARTED
    over = job._exceeded is not None
    blamed = begun or suspected or over  # its time is over, whether it had begun or not
    costs = blamed and costs_attempt(delivery=delivery, times_returned=returned)
    error: BaseException | None = None
    again = True
    if over:
        costs = costs or job._exceeded is TimeLimit.TIMEOUT
        error, may_retry, _ = overdue(job, handle)
        again = may_retry and policy.after_exception(error, attempt=job.attempt)
    elif blamed:
        again = policy.after_crash(
            kind=kind, delivery=delivery, attempt=job.attempt, times_returned=returned
        )
    return Loss(job, delivery, begun, blamed, costs, again, error)


def judge(
    jobs: list[Job[Any]], handle: WorkerHandle, slot: Slot, kind: CrashKind
) -> list[Loss]:
    """Return what the death of a worker means for *jobs*, which it had in flight."""
    found = [(job, _delivery_despite_lies(job, handle, slot)) for job in jobs]
    suspect = None if slot.exit_planned else _about_to_begin(found, handle, slot)
    return [
        _judge_one(job, delivery, handle, kind, suspected=job is suspect)
        for job, delivery in found
    ]
