"""The sandbox of a pool, checked against this machine, and what each of its workers gets."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.sandbox.checks import check_rlimits, check_together, is_within
from asyncpool._core.sandbox.plan import (
    SandboxPlan,
    Settings,
    make_plan,
    most_tasks,
)
from asyncpool._core.sandbox.requirements import Missing, missing, refusal
from asyncpool._runtime.launcher.script import main_script
from asyncpool._runtime.sandbox.machine import (
    installation,
    least_library,
    library,
    this_machine,
)
from asyncpool.errors import UnsupportedPlatformError
from asyncpool.sandbox import Sandbox, settings_of


@dataclass(frozen=True, slots=True)
class Confinement:
    """The sandbox of a pool, checked against this machine.

    Attributes:
        plan: What each worker does.
        missing: What cannot be enforced here; empty for a strict sandbox.
        limits: The limits of each worker's cgroup, by controller.
        script: What is ``__main__`` in workers, without the arguments of the service.
        script_first: Whether workers import that before they shut themselves in.  They do if it
            is the user's own, and not an installed command, which starts services.
    """

    plan: SandboxPlan
    missing: tuple[Missing, ...]
    limits: dict[str, int | float]
    script: tuple[str, str, tuple[str, ...]] | None
    script_first: bool


def confine(sandbox: Sandbox, limits: WorkerLimits) -> Confinement:
    """Check a sandbox against this machine.

    Raises:
        UnsupportedPlatformError: If this machine cannot enforce it, and it is strict.
        ValueError: If a path or the user is not there, or the limits contradict each other.
    """
    settings = settings_of(sandbox, _user_of(sandbox.user))
    # First, since it may be among the others too.
    if settings.workdir is not None and not Path(settings.workdir).is_dir():
        raise ValueError(f"Sandbox(workdir=...): {settings.workdir} is no folder here")
    _check_paths("read", settings.read)
    _check_paths("write", settings.write)
    settings = _resolved(settings)
    check_together(settings)
    check_rlimits(settings, limits.rlimits)
    machine = this_machine()
    lacks = missing(settings, machine)
    if lacks and sandbox.strict:
        raise UnsupportedPlatformError(refusal(lacks))
    script = _script()
    readable = library() if settings.imports else least_library()
    return Confinement(
        make_plan(settings, machine, readable, limits.rlimits),
        lacks,
        _cgroup_limits(settings, machine.limits),
        script=script,
        script_first=script is not None and not is_within(script[1], installation()),
    )


def _script() -> tuple[str, str, tuple[str, ...]] | None:
    script = main_script()
    return None if script is None else (*script[:2], script[1:2])


def _resolved(settings: Settings) -> Settings:
    """Return the settings with paths that go through no link, before any job can change one.

    Raises:
        ValueError: If workers could replace the folder of the private folders by a link.
    """
    write = tuple(map(os.path.realpath, settings.write))
    private = os.path.realpath(tempfile.gettempdir())
    for path in write:
        if is_within(private, [path]):
            raise ValueError(
                f"Sandbox(write=...): {path} holds the private folders of workers, which one "
                "worker could then replace for the next: name a folder below, or set TMPDIR"
            )
    workdir = settings.workdir
    return settings._replace(
        read=tuple(map(os.path.realpath, settings.read)),
        write=write,
        workdir=None if workdir is None else os.path.realpath(workdir),
    )


def _check_paths(setting: str, paths: Iterable[str]) -> None:
    for path in paths:
        if not Path(path).exists():
            raise ValueError(
                f"Sandbox({setting}=...): {path} does not exist; make it before the pool, or "
                "leave it out"
            )


def _user_of(user: str | int | None) -> tuple[int, int] | None:
    """Return the numbers of a user and of his group.

    Raises:
        ValueError: If there is no such user, if that is root or this process's own, or if this
            process may not become another one.
    """
    if user is None:
        return None
    try:
        entry = pwd.getpwnam(user) if isinstance(user, str) else pwd.getpwuid(user)
    except KeyError:
        if isinstance(user, str) or not 0 < user < 1 << 32:
            raise ValueError(f"Sandbox(user={user!r}): there is no such user") from None
        numbers = user, user
    else:
        numbers = entry.pw_uid, entry.pw_gid
    if numbers[0] in {0, os.geteuid()}:
        whose = "root" if numbers[0] == 0 else "the user of the service itself"
        raise ValueError(
            f"Sandbox(user={user!r}): that is {whose}, whose files would be the worker's own: "
            "name a user who owns nothing, or leave it out"
        )
    if os.geteuid() != 0:
        raise ValueError(
            f"Sandbox(user={user!r}): only root can have workers of another user; run the "
            "service as that user, or leave it out"
        )
    return numbers


def _cgroup_limits(
    settings: Settings, offered: Iterable[str]
) -> dict[str, int | float]:
    wanted = {
        "memory": settings.memory,
        "pids": most_tasks(settings),
        "cpu": settings.cpus,
    }
    return {
        name: value
        for name, value in wanted.items()
        if value is not None and name in offered
    }
