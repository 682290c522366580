"""Tests of asyncpool/_core/slots/commands.py, and of the other plain data of the core."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from asyncpool._core.policies.attempts import AttemptPolicy
from asyncpool._core.policies.restart import (
    GiveUpRestarting,
    RestartPolicy,
    RestartWorker,
    RetryStart,
)
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots import commands
from asyncpool._core.slots.commands import Command
from asyncpool._core.wire.context import JobContext
from asyncpool._core.wire.frames import Frame
from asyncpool._core.wire.messages import Failure, LauncherConfig, WorkerConfig
from asyncpool._worker.api.context import CurrentJob

POLICIES = [AttemptPolicy, RestartPolicy, WorkerLimits]
DATA = [
    *get_args(Command),
    *POLICIES,
    *(GiveUpRestarting, RestartWorker, RetryStart),
]
RECORDS = [JobContext, CurrentJob, Failure, Frame, LauncherConfig, WorkerConfig]


@pytest.mark.parametrize("cls", DATA)
def test_what_is_passed_around_never_changes(cls: type) -> None:
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(cls)


@pytest.mark.parametrize("cls", RECORDS)
def test_what_workers_see_too_never_changes_and_is_light(cls: type) -> None:
    assert issubclass(cls, tuple)
    assert vars(cls)["__slots__"] == ()


@pytest.mark.parametrize("cls", POLICIES)
def test_the_fields_of_a_policy_are_given_by_name(cls: type) -> None:
    with pytest.raises(TypeError, match="positional"):
        cls(1)


def test_every_command_is_exported() -> None:
    names = {command.__name__ for command in get_args(Command)}
    assert names | {"Command"} == set(commands.__all__)


def test_what_each_command_says() -> None:
    # The shell reads them by position.
    assert {
        command.__name__: command.__match_args__ for command in get_args(Command)
    } == {
        "Spawn": ("slot", "generation"),
        "Assign": ("slot", "jobs"),
        "Unassign": ("jobs",),
        "DropPinnedJobs": ("jobs",),
        "Offer": ("slot", "session"),
        "EndSession": ("session", "calls"),
        "RefuseSessions": (),
        "Revoke": ("slot", "sequences"),
        "Interrupt": ("slot", "sequence"),
        "WriteStacks": ("slot", "job"),
        "Stop": ("slot",),
        "Terminate": ("slot",),
        "Kill": ("slot", "reason"),
        "Abandon": ("slot",),
        "FailJobs": ("jobs", "why"),
        "TellRestart": ("slot", "delay"),
        "ParkSlot": ("slot", "reason", "probe_in"),
        "LeaveEmpty": ("slot",),
        "KeepWorker": ("slot", "again_in"),
        "Retiring": ("slot", "reason"),
        "Resized": ("workers",),
        "RollEnded": ("replaced", "reason", "filled"),
        "GiveUp": ("reason",),
        "Recover": ("slot",),
        "Finished": (),
    }


def test_commands_are_compared_by_what_they_say() -> None:
    said = [
        commands.Assign(0, (1, 2)),
        commands.Assign(0, (2, 1)),
        commands.Assign(1, (1, 2)),
        commands.Unassign((1, 2)),
        commands.Revoke(0, (1, 2)),
        commands.Revoke(0, ()),
    ]
    assert len(set(said)) == len(said)
    assert commands.Assign(0, (1, 2)) == commands.Assign(0, (1, 2))
    assert commands.Unassign((1,)) == commands.Unassign((1,))
    assert commands.Revoke(0, (1,)) == commands.Revoke(0, (1,))
