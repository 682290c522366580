"""Open a control socket under a name that commands find, or say why there is none."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asyncpool._core import log_messages as say
from asyncpool._engine.life_log import NamedLog
from asyncpool._observe.control.paths import path_of, path_of_name
from asyncpool._observe.control.server import Answer, ControlSocket, Watch
from asyncpool._observe.control.socket_files import folders_locked

# How many of one program may have the same name.
_MOST_OF_A_NAME = 100


@dataclass(frozen=True, slots=True)
class Control:
    """A control socket that is open.

    Attributes:
        socket: The socket.
        name: What commands call its owner.
        which: What commands are told to find it.
    """

    socket: ControlSocket
    name: str
    which: str


@dataclass(frozen=True, slots=True)
class ControlOwner:
    """Who wants a control socket.

    Attributes:
        kind: What logs call it: ``"cluster"``.
        name: Its name.
        advice: What a log record says about a socket that cannot be made.
        keeps_name: Whether a name that it was told must be its own.
    """

    kind: str
    name: str
    advice: str
    keeps_name: bool

    @property
    def title(self) -> str:
        """What log records call it, such as ``cluster app``."""
        return f"{self.kind} {self.name}"


async def open_control(
    owner: ControlOwner, control: str | None, answer: Answer, watch: Watch
) -> Control | None:
    """Open the control socket; where none can be made, there is only a warning.

    The work of the owner is more important.  But a path that was asked for must be had.

    Args:
        owner: Whose socket it is.
        control: The name or path that was asked for; ``None`` for the owner's name.
        answer: Returns the answer to a request.
        watch: Returns what tells a client how it goes that wants to watch.

    Raises:
        OSError: If a socket that was asked for cannot be made, or its name is another one's
            and the owner keeps to names.
        ValueError: If it is no name.

    Cancellation:
        Opens none.
    """
    log = NamedLog(owner.name, owner.title)
    try:
        made = await _made(owner, control, answer, watch)
    except (OSError, ValueError) as error:
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        is_path = control is not None and "/" in control
        if is_path or (in_use and control is not None):
            raise
        log.now(say.NO_CONTROL, why=error, advice=owner.advice)
        return None
    name, which = owner.name, f"--control {made.path}"
    if (stem := _name_at(made.path)) is not None:
        name, which = stem, stem
    if stem is not None and name != (control or owner.name):
        log.now(say.NAME_TAKEN, {"which": which})
    made.open()
    return Control(made, name, which)


async def _made(
    owner: ControlOwner, control: str | None, answer: Answer, watch: Watch
) -> ControlSocket:
    # Who asked for no path gets none, whatever the name is.
    name, place = (control, path_of) if control else (owner.name, path_of_name)
    is_fixed = control is not None and (owner.keeps_name or "/" in control)
    tails = iter(("",)) if is_fixed else _tails()
    paths = (place(f"{name}{tail}", make=True) for tail in tails)
    path = next(paths)
    async with folders_locked([path]):  # the others would be in the same one
        return _made_at(path, paths, answer, watch)


def _made_at(
    path: str, others: Iterator[str], answer: Answer, watch: Watch
) -> ControlSocket:
    while True:
        try:
            return ControlSocket(path, answer, watch=watch)
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            other = next(others, None) if in_use else None
            if other is None:
                reason = error.strerror or error
                raise OSError(
                    error.errno, f"cannot make the control socket {path}: {reason}"
                ) from error
            path = other


def _tails() -> Iterator[str]:
    """Yield what is added to a name while others have it, which was nobody's choice."""
    yield ""
    yield f"-{os.getpid()}"
    for number in range(2, _MOST_OF_A_NAME + 1):
        yield f"-{os.getpid()}-{number}"


def _name_at(path: str) -> str | None:
    """Return the name that a control socket has among those of this user, if it does."""
    stem = Path(path).stem
    try:
        return stem if path == path_of(stem) else None
    except (OSError, ValueError):  # they cannot be had, or it is no name
        return None
