"""Check the settings of a sandbox, each by itself and all of them together."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from asyncpool._core.base.text import in_units
from asyncpool._core.base.validation import several

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from asyncpool._core.sandbox.plan import Settings

_MOST_PORT = 65535

# A worker that may add less than this to its memory cannot answer its pool.
_LEAST_MEMORY = 8 << 20


def ports_of(network: object) -> tuple[int, ...] | None:
    """Return the TCP ports that *network* names; ``None`` for the whole network.

    Raises:
        TypeError: If it is neither a bool nor ports.
        ValueError: If something is no port, or names a host.
    """
    if isinstance(network, bool):
        return None if network else ()
    ports: list[int] = []
    for each in several("network", network, "True, False or numbers of TCP ports"):
        if isinstance(each, str):
            raise ValueError(  # noqa: TRY004 - a text, but one that may well be meant
                f"network names {each!r}, and the kernel tells ports apart, not hosts: give "
                "numbers of ports, or connect in the service and hand over what comes back"
            )
        if isinstance(each, bool) or not isinstance(each, int):
            raise TypeError(f"network takes numbers of TCP ports, not {each!r}")
        if not 0 < each <= _MOST_PORT:
            raise ValueError(f"network: there is no port {each}")
        ports.append(each)
    return tuple(sorted(set(ports)))


def environment_of(env: object) -> tuple[tuple[str, str], ...]:
    """Return the variables of an environment.

    Raises:
        TypeError: If it is no mapping of texts.
        ValueError: If no process can have such a variable.
    """
    if not isinstance(env, Mapping):
        raise TypeError(f"env must be a mapping of texts, not {env!r}")
    for name, value in env.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"env takes texts, not {name!r}: {value!r}")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"env: no environment can have {name!r}: {value!r}")
    return tuple(sorted(env.items()))


def check_together(settings: Settings) -> None:
    """Check that the settings of a sandbox do not contradict each other.

    Raises:
        ValueError: If two of them do; the text names both.
    """
    workdir = settings.workdir
    inside = (*settings.read, *settings.write)
    if workdir is not None and not is_within(workdir, inside):
        raise ValueError(
            f"workdir={workdir!r} is in no folder of read or write, so the worker could not "
            "look into the folder that it works in: add it to one of them"
        )
    if "/" in settings.write:
        raise ValueError("write names '/': that is no sandbox, name the folders")
    for path in (*settings.read, *settings.write):
        for folder in settings.write:
            if path != folder and is_within(path, [folder]):
                raise ValueError(
                    f"{path!r} is below {folder!r} of write, so a job could replace it by a link "
                    "before the next worker begins: leave it out, workers have it already, or move "
                    "it elsewhere"
                )
    if settings.memory is not None and settings.memory < _LEAST_MEMORY:
        least, given = in_units(_LEAST_MEMORY), in_units(settings.memory)
        raise ValueError(f"memory must be at least {least}, not {given}")


def check_rlimits(settings: Settings, others: Container[str]) -> None:
    """Check that nothing else sets a limit that the sandbox sets.

    Args:
        settings: The settings.
        others: The names of the kernel's limits that ``worker_limits`` sets.

    Raises:
        ValueError: If they do; the text names both settings.
    """
    ours = {
        "RLIMIT_AS": ("memory", settings.memory),
        "RLIMIT_CPU": ("cpu_seconds", settings.cpu_seconds),
        "RLIMIT_NPROC": ("processes", settings.processes or None),
        "RLIMIT_CORE": ("no dumps of memory", 0),
    }
    for name, (setting, value) in ours.items():
        if value is not None and name in others:
            raise ValueError(
                f"worker_limits sets {name}, and so does the sandbox ({setting}): leave it "
                "to one of them"
            )


def is_within(path: str, folders: Iterable[str]) -> bool:
    """Return whether *path* is one of *folders*, or below one; all are absolute."""
    return any(f"{path}/".startswith(f"{each.rstrip('/')}/") for each in folders)
