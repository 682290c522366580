"""Open a control socket under a name that commands find, or say why there is none."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from asyncpool._core import log_messages as say
from asyncpool._engine.life_log import NamedLog
from asyncpool._observe.control.paths import path_of, path_of_name
from asyncpool._observe.control.server import Answer, ControlSocket, Watch
from asyncpool._observe.control.socket_files import folders_locked

# How many of one program may have the same name.
_MOST_OF_A_NAME = 100


class Control(NamedTuple):
    """A control socket that is open.

    Attributes:
        socket: The socket.
        name: What commands call its owner.
        which: What commands are told to find it.
    """

    socket: ControlSocket
    name: str
    which: str


class ControlOwner(NamedTuple):
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


async def open_control(
    owner: ControlOwner, control: str | None, answer: Answer, watch: Watch
) -> Control | None:
    """Open the control socket; where none can be made, there is only a warning.

    The work of the owner is more important.  But a path that was asked for must be had.

    Args:
        owner: Whose socket it is.
        control: The name or path that was asked for; ``None`` for the owner's name.
        answer: Returns the answer to a request.
        watch: Yields what tells a client how it goes that wants to watch.

    Raises:
        OSError: If a socket that was asked for cannot be made, or its name is another one's
            and the owner keeps to names.
        ValueError: If it is no name.

    Cancellation:
        Opens none.
    """
    log, wanted = NamedLog(owner.name, f"{owner.kind} {owner.name}"), control or ""
    tails = [""]
    if not wanted or not (owner.keeps_name or "/" in wanted):
        # What is added to a name while others have it, which was nobody's choice.
        pid = os.getpid()
        tails += [f"-{pid}", *(f"-{pid}-{n}" for n in range(2, _MOST_OF_A_NAME + 1))]

    def path_with(tail: str) -> str:
        # Who asked for no path gets none, whatever the name is.
        find = path_of if wanted else path_of_name
        return find(f"{wanted or owner.name}{tail}", make=True)

    try:
        # The others would be in the same folder.
        async with folders_locked([path_with("")]):
            made = _made(map(path_with, tails), answer, watch)
    except (OSError, ValueError) as error:
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        if "/" in wanted or (in_use and control is not None):
            raise
        log.now(say.NO_CONTROL, why=error, advice=owner.advice)
        return None
    name, which, stem = owner.name, f"--control {made.path}", Path(made.path).stem
    with suppress(OSError, ValueError):  # names cannot be had, or it is none
        if made.path == path_of(stem):
            name = which = stem
            if name != (wanted or owner.name):
                log.now(say.NAME_TAKEN, {"which": which})
    made.open()
    return Control(made, name, which)


def _made(paths: Iterator[str], answer: Answer, watch: Watch) -> ControlSocket:
    """Return the socket at the first of *paths* where nobody listens."""
    path = next(paths)
    while True:
        try:
            return ControlSocket(path, answer, watch=watch)
        except OSError as error:
            following = next(paths, None) if error.errno == errno.EADDRINUSE else None
            if following is None:
                reason = error.strerror or error
                text = f"cannot make the control socket {path}: {reason}"
                raise OSError(error.errno, text) from error
            path = following
