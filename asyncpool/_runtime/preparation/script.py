"""Look at this process's ``__main__``, and tell workers what to import in its place."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from pathlib import Path
from types import ModuleType

from asyncpool._core.main import main_module
from asyncpool._core.main.scripts import Origin, Script, recognise
from asyncpool._system.interpreter import MARK, REFUSAL


class _Seen:
    """The ``__main__`` that ``main_script`` has looked at last."""

    main: ModuleType | None = None
    script: Script | None = None


def main_script() -> tuple[str, str, tuple[str, ...]] | None:
    """Return the script that workers import: its module's name, file and arguments.

    ``None`` if what is defined in ``__main__`` travels by value.
    """
    main = sys.modules["__main__"]
    if _Seen.main is not main:
        script = recognise(_look_at(main))
        main_module.know(script)
        _Seen.main, _Seen.script = main, script
        if script is not None:
            # Workers import the script under that name, so pickles from them need it here.
            sys.modules["__mp_main__"] = main
    found = _Seen.script
    return None if found is None else (found.module, found.path, tuple(sys.argv))


def check_not_imported(what: str) -> None:
    """Check that this process is no worker that imports the script, before it starts a *what*.

    Raises:
        RuntimeError: If it is one, or should be: then each worker would start a pool with workers.
    """
    if (channel := os.environ.get(MARK)) is not None:
        if (
            "-c" not in sys.orig_argv
        ):  # it runs a program, and will never come to the rest
            with contextlib.suppress(OSError, ValueError):
                socket.socket(fileno=int(channel)).send(REFUSAL)
        raise RuntimeError(
            f"a {what} is started in a process that was itself started to have workers: a frozen "
            "program must call multiprocessing.freeze_support() first under `if __name__ == "
            "'__main__':`, and what each interpreter imports as it starts must start none"
        )
    path = main_module.importing()
    if path:
        raise RuntimeError(
            f"a {what} is started while a worker imports the script {path}: put what "
            "starts it under `if __name__ == '__main__':`"
        )


def _look_at(main: ModuleType) -> Origin:
    path, source = "", b""
    file: object = getattr(main, "__file__", None)
    if isinstance(file, str):
        try:
            found = Path(file).absolute()
            if stat.S_ISREG(found.stat().st_mode):
                path, source = str(found), found.read_bytes()
        except (
            OSError
        ):  # it has no file of its own: it is inside an archive, for example
            pass
    spec = getattr(main, "__spec__", None)
    return Origin(
        module=getattr(spec, "name", "") or "",
        path=path,
        source=source,
        interactive=hasattr(sys, "ps1")
        or bool(sys.flags.interactive)
        or hasattr(sys, "frozen"),
        imported=main.__name__ == "__mp_main__",
    )
