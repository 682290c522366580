"""What a worker may reach: files, network, processes, memory, and its environment."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from asyncpool._core import checks
from asyncpool._core.checks import option
from asyncpool._dataclass import dataclass
from asyncpool._wire.text import in_units

__all__ = ["Sandbox"]

_GIB = 1 << 30
_MOST_PORT = 65535

# A worker that may add less than this to its memory cannot answer its pool.
_LEAST_MEMORY = 8 << 20

Path = str | os.PathLike[str]
_PATH = str, os.PathLike


# The settings, each with its check.


def _absolute(name: str, path: object) -> str:
    if not isinstance(path, _PATH):
        raise TypeError(f"{name} takes paths, not {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise TypeError(f"{name} takes paths as text, not {path!r}")
    # Where a link leads is decided when the pool is made.
    return os.path.abspath(text)  # noqa: PTH100


def _paths(name: str, paths: object) -> tuple[str, ...]:
    several = checks.several("paths", single=_PATH)(name, paths)
    return tuple(_absolute(name, path) for path in several)


def _workdir(name: str, path: Any) -> str | None:
    checks.Argument(_PATH, "a path").or_none()(name, path)
    return None if path is None else _absolute(name, path)


def _ports(name: str, network: object) -> bool | tuple[int, ...]:
    """Return the TCP ports that *network* names, in order; ``False`` if it names none."""
    if isinstance(network, bool):
        return network
    ports = checks.several("True, False or numbers of TCP ports")(name, network)
    for each in ports:
        if isinstance(each, str):
            raise ValueError(  # noqa: TRY004 - a text, but one that may well be meant
                f"network names {each!r}, and the kernel tells ports apart, not hosts: give "
                "numbers of ports, or connect in the service and hand over what comes back"
            )
        if isinstance(each, bool) or not isinstance(each, int):
            raise TypeError(f"network takes numbers of TCP ports, not {each!r}")
        if not 0 < each <= _MOST_PORT:
            raise ValueError(f"network: there is no port {each}")
    return tuple(sorted(set(ports))) or False


def _environment(name: str, env: object) -> dict[str, str]:
    """Return the variables of an environment, in order."""
    return dict(sorted(checks.environment(name, env)))


def _is_positive(number: float) -> bool:
    return 0 < number < math.inf


_POSITIVE = "> 0 and finite, or None", _is_positive
_USER = checks.Argument(
    (str, int, type(None)), "the name or the number of a user, or None"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What the workers of a pool may reach, on Linux; all else the kernel refuses.

    A worker shuts itself in after the imports of *preload* and before its initializer and its
    first job.  Nothing opens the sandbox again, also for the threads and processes that jobs
    start.  :func:`dataclasses.replace` changes a setting of a sandbox that there is.

    Args: Files
        read: Files and folders that workers may read, with all that is below.
        write: Files and folders in which they may also write, create and delete.  No other path
            may be below one of these: a job could replace it by a link.
        workdir: The folder that they work in; one of *read* or *write*, or below.  By default
            each worker has a private folder, which the pool removes with the worker.  It is also
            its ``HOME`` and its ``TMPDIR``.
        imports: Whether workers may import what is installed: the standard library and the
            packages of this interpreter.  Without it they have what *preload* has imported.
            Modules of the service itself are in reach if *preload* or *read* names them.

    Args: The world outside
        network: ``False`` for no sockets; ``True`` for the whole network; or the numbers of the
            TCP ports to which workers may connect, on any host.
        env: The environment of the workers, and all of it, but for ``HOME`` and ``TMPDIR``.

    Args: Limits
        processes: How many processes a worker may have beside itself.  With 0 it can start
            none, and run no program, and has up to 256 threads; ``None`` for any number.  The
            kernel counts threads too, so with a number above 0 it is that many and 256, processes
            and threads together.
        memory: How many bytes of address space a worker may add to what it has when the sandbox
            begins; ``None`` for any amount.  Beyond that it gets a :exc:`MemoryError`.
        cpu_seconds: How many seconds of CPU time a worker may use in its life, rounded up to
            whole ones.  Then the kernel kills it.  ``None`` for any time.
        cpus: How many CPUs a worker may keep busy; needs a delegated cgroup.  ``None`` for any.
        user: The user whose process a worker becomes, by name or number; needs root.  Neither
            root nor the service's own: that is a :exc:`ValueError` of the pool.

    Args: Where it cannot be had
        strict: Whether the pool refuses to start where the kernel cannot enforce a setting.
            With ``False`` it starts, and its log says what is missing.

    Raises:
        TypeError: If a setting is of the wrong type.
        ValueError: If one is out of range, or two contradict each other.
    """

    read: Iterable[Path] = option(_paths, ())
    write: Iterable[Path] = option(_paths, ())
    workdir: Path | None = option(_workdir, None)
    imports: bool = option(checks.SWITCH, True)
    network: bool | Iterable[int] = option(_ports, False)
    env: Mapping[str, str] = option(_environment, factory=dict)
    processes: int | None = option(checks.at_least(0).or_none(), 0)
    memory: int | None = option(checks.INT.or_none().within(*_POSITIVE), None)
    cpu_seconds: float | None = option(
        checks.SECONDS.or_none().within(*_POSITIVE), None
    )
    cpus: float | None = option(checks.NUMBER.or_none().within(*_POSITIVE), None)
    user: str | int | None = option(_USER, None)
    strict: bool = option(checks.SWITCH, True)

    def __post_init__(self) -> None:
        checks.apply_to(self)
        read, write, workdir = self.read, self.write, self.workdir
        if workdir is not None and not is_within(workdir, [*read, *write]):
            raise ValueError(
                f"workdir={workdir!r} is in no folder of read or write, so the worker could not "
                "look into the folder that it works in: add it to one of them"
            )
        if "/" in write:
            raise ValueError("write names '/': that is no sandbox, name the folders")
        for path in (*read, *write):
            for folder in write:
                if path != folder and is_within(path, [folder]):
                    raise ValueError(
                        f"{path!r} is below {folder!r} of write, so a job could replace it by a "
                        "link before the next worker begins: leave it out, workers have it "
                        "already, or move it elsewhere"
                    )
        if self.memory is not None and self.memory < _LEAST_MEMORY:
            least, given = in_units(_LEAST_MEMORY), in_units(self.memory)
            raise ValueError(f"memory must be at least {least}, not {given}")

    @classmethod
    def parser(cls) -> Sandbox:
        """Return a sandbox for parsers of hostile files, which get them as bytes.

        They have no files, no network, no other processes, and 1 GiB of memory.
        """
        return cls(imports=False, memory=_GIB)

    @classmethod
    def generated_code(cls, workdir: Path | None = None) -> Sandbox:
        """Return a sandbox for code that nobody has read, such as a model's.

        It may import what is installed, and has *workdir*, or a private folder for each worker.
        It has no other files, no network, no other processes, and 1 GiB of memory.

        Args:
            workdir: A folder in which all workers may read and write.
        """
        write = () if workdir is None else (workdir,)
        return cls(write=write, workdir=workdir, memory=_GIB)


def is_within(path: Path, folders: Iterable[Path]) -> bool:
    """Return whether *path* is one of *folders*, or below one; all are absolute."""
    return any(f"{path}/".startswith(f"{each}".rstrip("/") + "/") for each in folders)
