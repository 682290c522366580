"""Tests of asyncpool/_core/commands.py, and of the other plain data of the core."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from asyncpool._core import commands
from asyncpool._core.attempts import AttemptPolicy
from asyncpool._core.commands import Command
from asyncpool._core.messages import Failure, LauncherConfig, WorkerConfig
from asyncpool._core.restart import Break, Park, Restart, RestartPolicy

POLICIES = [AttemptPolicy, RestartPolicy]
DATA = [
    *get_args(Command),
    *POLICIES,
    *(Failure, LauncherConfig, WorkerConfig),
    *(Break, Park, Restart),
]


@pytest.mark.parametrize("cls", DATA)
def test_what_is_passed_around_never_changes(cls: type) -> None:
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(cls)


@pytest.mark.parametrize("cls", POLICIES)
def test_the_fields_of_a_policy_are_given_by_name(cls: type) -> None:
    with pytest.raises(TypeError, match="positional"):
        cls(1)


def test_every_command_is_exported() -> None:
    names = {command.__name__ for command in get_args(Command)}
    assert names | {"Command"} == set(commands.__all__)
