"""The environment variables that workers have beside those of the service.

There are two kinds, since a forked worker has begun to live in the launcher.  A mapping is the
same for all workers: the launcher itself is started with it, so it holds for all that is
imported anywhere.  A function gives each worker its own: then the launcher must import nothing
for the workers, and each worker sets its variables before it imports anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from asyncpool._core.wire.messages import Variables

# What the user gives: variables for all workers, or a function of the slot.
GivenEnv: TypeAlias = Mapping[str, str] | Callable[[int], Mapping[str, str]]

# The most bytes of the variables of one worker.  They travel in one piece to the launcher, whose
# socket must hold those of 16 workers.
MAX_BYTES = 8192

# What the interpreter, or the loader of its libraries, reads only as the process starts.
_READ_AT_START = ("PYTHON", "LD_", "DYLD_")


class WorkerEnv:
    """The variables, checked.

    Args:
        given: What the user has given.

    Attributes:
        common: The variables of all workers.
        varies: Whether each worker has variables of its own.

    Raises:
        TypeError: If it is neither a mapping of texts nor a function.
        ValueError: If something cannot be the name or the value of a variable.
    """

    def __init__(self, given: GivenEnv) -> None:
        self._function = None if isinstance(given, Mapping) else given
        self.varies = self._function is not None
        self.common: Variables = ()
        if self._function is None:
            self.common = _checked("worker_env", given)
        elif not callable(self._function):
            raise TypeError(
                "worker_env must be a mapping of names to values, or a function of the slot "
                f"that returns one, not {given!r}"
            )

    def of(self, rank: int, *, forked: bool) -> Variables:
        """Return the variables that the worker with this *rank* alone has.

        Args:
            rank: What the function gets.
            forked: Whether the worker is forked, and not a fresh interpreter.

        Raises:
            TypeError: If the function returns no mapping of texts.
            ValueError: If it returns what cannot be in an environment, or comes too late.
            Exception: What the function raises.
        """
        if self._function is None:
            return ()
        name = f"worker_env({rank})"
        variables = _checked(name, self._function(rank))
        size = sum(len(key) + len(value) for key, value in variables)
        if size > MAX_BYTES:
            raise ValueError(
                f"{name} has {size} characters, and {MAX_BYTES} is the most: "
                "name a file instead"
            )
        late = [key for key, _ in variables if key.startswith(_READ_AT_START)]
        if forked and late:
            raise ValueError(
                f"{name} sets {late[0]}, which takes effect only as a process starts, and a "
                'forked worker has started before: use launcher="spawn", or a mapping if '
                "the value is the same for all workers"
            )
        return variables


def _checked(name: str, given: object) -> Variables:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping of names to values, not {given!r}")
    variables: list[tuple[str, str]] = []
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            wrong = value if isinstance(key, str) else key
            what = f"the value of {key!r}" if isinstance(key, str) else "a name"
            raise TypeError(f"{name}: {what} must be a str, not {wrong!r}")
        if not key or "=" in key or "\0" in key:
            raise ValueError(f"{name}: {key!r} cannot be the name of a variable")
        if "\0" in value:
            raise ValueError(f"{name}: the value of {key!r} has a null character")
        variables.append((key, value))
    return tuple(variables)
