"""Where the control socket of a cluster is, and how commands find it."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from asyncpool._core.cluster import server_messages as say
from asyncpool._core.control.control_protocol import Request
from asyncpool._runtime.control.paths import path_of
from asyncpool._runtime.control.server import ControlSocket

_LOGGER = logging.getLogger("asyncpool")

Answer: TypeAlias = Callable[[Request], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Control:
    """A control socket that is open.

    Attributes:
        socket: The socket.
        name: What commands call the cluster.
        which: The option of commands that names it.
    """

    socket: ControlSocket
    name: str
    which: str


def open_control(cluster: str, control: str | None, answer: Answer) -> Control | None:
    """Open the control socket; where none can be made, there is only a warning.

    Serving is more important.  But a path that was asked for must be had, and a name
    that was given and is another one's is more likely to be a mistake.

    Args:
        cluster: The cluster's name.
        control: The name or path that was asked for; ``None`` for the cluster's name,
            ``""`` for no socket.
        answer: Returns the answer to a request.

    Raises:
        OSError: If a socket that was asked for cannot be made, or its name is another one's.
        ValueError: If it is no name.
    """
    if control == "":
        return None
    try:
        made = _made(cluster, control, answer)
    except (OSError, ValueError) as error:
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        is_path = control is not None and "/" in control
        if is_path or (in_use and control is not None):
            raise
        title = f"cluster {cluster}"
        say.NO_CONTROL.log(_LOGGER, {"pool": cluster}, title=title, why=error)
        return None
    name, which = cluster, f"--control {made.path}"
    if (stem := _name_at(made.path)) is not None:
        name, which = stem, f"--name {stem}"
    if control is None and name != cluster:
        extra = {"pool": cluster, "which": which}
        say.NAME_TAKEN.log(_LOGGER, extra, title=f"cluster {cluster}")
    made.open()
    return Control(made, name, which)


def _made(cluster: str, control: str | None, answer: Answer) -> ControlSocket:
    name = control or cluster
    path = path_of(name, make=True)
    try:
        return ControlSocket(path, answer)
    except OSError as error:
        if control is None and error.errno == errno.EADDRINUSE:
            # Another cluster has the name, and ours was a default, not somebody's choice.
            path = path_of(f"{name}-{os.getpid()}", make=True)
            return ControlSocket(path, answer)
        reason = error.strerror or error
        raise OSError(
            error.errno, f"cannot make the control socket {path}: {reason}"
        ) from error


def _name_at(path: str) -> str | None:
    """Return the name that a control socket has among those of this user, if it does."""
    stem = Path(path).stem
    try:
        return stem if path == path_of(stem) else None
    except (OSError, ValueError):  # they cannot be had, or it is no name
        return None
