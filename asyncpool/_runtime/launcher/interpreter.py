"""Start an interpreter with the flags and the asyncpool of this process, and nothing else of it."""

from __future__ import annotations

import errno
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from asyncpool._core.base.text import printable_lines
from asyncpool._core.wire.messages import LauncherConfig
from asyncpool._system.processes import (
    MARK,
    REFUSAL,
    command_line,
    frozen,
    greeting,
)

# The new process needs the asyncpool of this process, even if another one is installed.  So its
# directory comes first while asyncpool is imported, and last before anything else is imported.
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); import asyncpool; "
    "sys.path.append(sys.path.pop(0)); "
    "from asyncpool._worker.process import main; main()"
)
# A launcher first says which Python it is: another one may not even understand what follows.
_GREET = (
    "import os, sys; k = [sys.implementation.cache_tag + 't' * ('t' in sys.abiflags), "
    "ascii(os.path.realpath(os.path.dirname(os.__file__)))]; "
    "s = k[0] + ' ' + sys.version.split()[0] + ' in ' + k[1] + '\\n'; "
    "os.write(int(sys.argv[-1]), s.encode()); k == %r or sys.exit(1); "
)
_ROOT = str(Path(__file__).parents[3])

# Seconds in which an executable that may be anything has to show that it is a Python.
_PATIENCE = 10

_LONGEST = 1000

# What the kernel says of a file that is no program.
_UNUSABLE = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.ELOOP}


class LaunchError(Exception):
    """No worker could be started; the text says why.

    Attributes:
        trace: The traceback of the exception in the launcher, or its stacks when a signal ended it.
        status: The exit status of the launcher, if it has died of that and it is known.
        final: Whether another try would fail in the same way.
        again: Whether another launcher can start workers, with which they share less.
    """

    def __init__(
        self,
        text: str,
        *,
        trace: str = "",
        status: int | None = None,
        final: bool = False,
        again: bool = False,
    ) -> None:
        super().__init__(text)
        self.trace, self.status = printable_lines(trace), status
        self.final, self.again = final, again


class NewLauncher:
    """The launcher's process, until it has shown that it is one.

    Args:
        file: The file with its configuration.
        channel: Its end of the channel.
        config: That configuration.

    Attributes:
        popen: The process.
        patience: Seconds that it has to show that; ``None`` for as long as a worker has to
            become ready.

    Raises:
        LaunchError: If it is nothing that can be started; the text says what and why.
        OSError: If it cannot be started now.
    """

    def __init__(self, file: int, channel: int, config: LauncherConfig) -> None:
        executable, self._frozen = program()
        fds = [file, channel]
        variables = {**(os.environ if config.env is None else dict(config.env))}
        variables[MARK] = str(channel)
        if self._frozen:
            shown = frozen(executable)
            command = command_line(shown, "launcher", (file, channel))
            fds.append(int(command[-1].partition("=")[2]))
            # By these it knows that the files of the program are unpacked already.
            variables |= {k: v for k, v in os.environ.items() if k.startswith("_PYI_")}
        else:
            shown = _plain(executable)
            code = _GREET % _kind(greeting()) + _BOOTSTRAP
            command = [*shown, code, _ROOT, "launcher", str(file), str(channel)]
        self._shown = f"{shlex.join(shown)} ..."
        is_python = re.match("python|pypy", Path(executable).name)
        self._may_be_any = self._frozen or not is_python
        self.patience = None if self._frozen or is_python else _PATIENCE
        self._heard = b""
        folder = config.folder[0]
        try:
            self.popen = subprocess.Popen(  # noqa: S603 - our own interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if _is_passed_on(2) else subprocess.DEVNULL,
                pass_fds=fds,
                env=variables,
                cwd=folder if Path(folder).is_dir() else None,
                start_new_session=True,
            )
        except OSError as error:
            if error.errno not in _UNUSABLE or error.filename == folder:
                raise
            text = f"it cannot be started: {error}"
            raise self.fault(text, final=True) from error
        finally:
            for pipe in fds[2:]:
                os.close(pipe)

    def hear(self, data: bytes) -> bytes | None:
        """Return what comes after its first line; ``None`` if that is not yet there.

        Raises:
            LaunchError: If it is no launcher; the text says what it is.
        """
        self._heard += data
        line, end, rest = self._heard.partition(b"\n")
        if not end and len(line) < _LONGEST:
            return None
        said, due = _kind(line), _kind(greeting())
        # Some frozen programs unpack their library anew for each process.
        if said == due or (self._frozen and said[0] == due[0]):
            return rest
        if line == REFUSAL.strip():
            what = "it runs the program again, which has started a pool in turn"
        else:
            theirs, own = (it.decode(errors="replace") for it in (line, greeting()))
            what = f"it is {theirs[:500]}, and this process is {own.strip()}"
        raise self.fault(what, final=True)

    def fault(self, what: str, *, final: bool | None = None) -> LaunchError:
        """Return *what* is wrong, with the command line and the way out.

        Args:
            what: It.
            final: Whether another try would come out the same; ``None`` for as far as one can know.
        """
        if final is None:
            # A Python may have had no time, on a busy machine; and SIGKILL may have come for lack
            # of memory.
            status = self.popen.poll()
            final = self._may_be_any if status is None else status != -signal.SIGKILL
        if self._frozen:
            way_out = (
                "call multiprocessing.freeze_support() as the first thing under "
                "`if __name__ == '__main__':`"
            )
        else:
            way_out = (
                "name a Python of this version by multiprocessing.set_executable()"
            )
        text = (
            f"{self._shown} does not become the launcher of workers: {what}; {way_out}"
        )
        return LaunchError(printable_lines(text), final=final)


def worker_command() -> tuple[str, ...]:
    """Return the command line of a worker that starts as a fresh interpreter, up to its role."""
    executable, is_frozen = program()
    if is_frozen:
        return frozen(executable)
    return (*_plain(executable), _BOOTSTRAP, _ROOT)


def program() -> tuple[str, bool]:
    """Return what to start, empty if nobody knows, and whether it is a frozen program."""
    # Nuitka compiles the main module in any case, and this one not always.
    main = sys.modules["__main__"]
    is_frozen = hasattr(sys, "frozen") or hasattr(main, "__compiled__")
    if is_frozen:
        # With this, programs of Nuitka get the right sys.executable.
        importlib.import_module("multiprocessing.spawn")
    spawn = sys.modules.get("multiprocessing.spawn")
    chosen = os.fsdecode(spawn.get_executable() or b"") if spawn is not None else ""
    if chosen and chosen != sys.executable:  # by multiprocessing.set_executable()
        return chosen, False
    if not is_frozen and not sys.orig_argv:
        # This Python is part of another program, which sys.executable may name.
        name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        for prefix in (sys.exec_prefix, sys.base_exec_prefix):
            if os.access(beside := f"{prefix}/bin/{name}", os.X_OK):
                return beside, False
    return sys.executable, is_frozen


def _plain(executable: str) -> tuple[str, ...]:
    # The flags of this interpreter, as multiprocessing passes them on.  No directory comes in
    # front of the path, since any file in it could pose as a module.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
    return (executable, *flags, *([] if "-P" in flags else ["-P"]), "-c")


def _kind(line: bytes) -> list[str]:
    """Return what has to be the same: the version, and the folder of the standard library."""
    return line.decode(errors="replace").rstrip().split(" ", 3)[::3]


def _is_passed_on(fd: int) -> bool:
    # If stderr was closed, anything that the service has opened since may have its number.
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False
