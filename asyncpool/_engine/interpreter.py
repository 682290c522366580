"""Start an interpreter with the flags and the asyncpool of this process, and with its ``__main__``.

``multiprocessing`` imports each script in its workers, under the name ``__mp_main__``.
So what a script starts must be behind ``if __name__ == "__main__":``.  This module
takes that guard as the sign that a script may be imported.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import importlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from asyncpool._wire import scripts
from asyncpool._wire.messages import LauncherConfig, cannot_succeed
from asyncpool._wire.posix import REFUSAL, STARTS, command_line, frozen, greeting
from asyncpool._wire.scripts import Script
from asyncpool._wire.text import printable, printable_block, printable_text

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
_ROOT = str(Path(__file__).parents[2])

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
    """

    def __init__(
        self,
        text: str,
        *,
        trace: str = "",
        status: int | None = None,
        final: bool = False,
    ) -> None:
        super().__init__(printable_text(text))
        self.trace, self.status, self.final = printable_block(trace), status, final


class NewLauncher:
    """The launcher's process, until it has shown that it is one.

    Args:
        file: The file with its configuration.
        channel: Its end of the channel.
        config: That configuration.

    Attributes:
        popen: The process.
        greeted: Whether it has shown that it is a launcher.
        patience: Seconds that it has to show that; ``None`` for as long as a worker has to
            become ready.

    Raises:
        LaunchError: If it cannot be started, now or at all; the text says what and why.
    """

    def __init__(self, file: int, channel: int, config: LauncherConfig) -> None:
        fds = [file, channel]
        variables = {**(os.environ if config.env is None else dict(config.env))}
        variables[STARTS] = str(channel)
        _, self._frozen = program()
        shown = greets = config.command
        if not self._frozen:
            shown, (code, root) = shown[:-2], shown[-2:]
            greets = *shown, _GREET % _kind(greeting()) + code, root
        self._shown = f"{shlex.join(shown)} ..."
        is_python = re.match("python|pypy", Path(shown[0]).name)
        self._may_be_any = self._frozen or not is_python
        self.patience = None if self._frozen or is_python else _PATIENCE
        self.greeted, self._heard = False, b""
        folder = config.folder[0]
        try:
            command = command_line(greets, "launcher", (file, channel))
            if self._frozen:
                fds.append(int(command[-1].partition("=")[2]))
                # By these it knows that the files of the program are unpacked already.
                own = os.environ.items()
                variables |= {k: v for k, v in own if k.startswith("_PYI_")}
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
            text = f"cannot be started: {error}"
            if error.errno in _UNUSABLE and error.filename != folder:
                raise self.fault(f"it {text}", final=True) from error
            final = cannot_succeed(error, fixed=True)
            raise LaunchError(f"the launcher {text}", final=final) from error
        finally:
            for pipe in fds[2:]:
                os.close(pipe)

    def hear(self, data: bytes) -> bytes:
        """Return what of *data* comes after its first line.

        Raises:
            LaunchError: If it is no launcher; the text says what it is.
        """
        if self.greeted:
            return data
        self._heard += data
        line, end, rest = self._heard.partition(b"\n")
        if not end and len(line) < _LONGEST:
            return b""
        said, due = _kind(line), _kind(greeting())
        # Some frozen programs unpack their library anew for each process.
        if said == due or (self._frozen and said[0] == due[0]):
            self.greeted = True
            return rest
        if line == REFUSAL.strip():
            what = "it runs the program again, which has started a pool in turn"
        else:
            own = printable(greeting().strip())
            what = f"it is {printable(line, 500)}, and this process is {own}"
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
        way_out = (
            "call multiprocessing.freeze_support() as the first thing under "
            "`if __name__ == '__main__':`"
            if self._frozen
            else "name a Python of this version by multiprocessing.set_executable()"
        )
        text = f"{self._shown} does not become the launcher of workers: {what}"
        return LaunchError(f"{text}; {way_out}", final=final)


def worker_command() -> tuple[str, ...]:
    """Return the command line of a worker that starts as a fresh interpreter, up to its role."""
    executable, is_frozen = program()
    if is_frozen:
        return frozen(executable)
    # The flags of this interpreter, as multiprocessing passes them on.  No directory comes in
    # front of the path, since any file in it could pose as a module.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
    safe = [] if "-P" in flags else ["-P"]
    return (executable, *flags, *safe, "-c", _BOOTSTRAP, _ROOT)


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


def _kind(line: bytes) -> list[str]:
    """Return what has to be the same: the version, and the folder of the standard library."""
    return printable(line.rstrip()).split(" ", 3)[::3]


def _is_passed_on(fd: int) -> bool:
    # If stderr was closed, anything that the service has opened since may have its number.
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


HERE, THERE = "__main__", "__mp_main__"

# What a comparison of the module's name with others is made of.
_PLAIN = (
    *(ast.Compare, ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Load),
    *(ast.Constant, ast.Tuple, ast.List, ast.Set),
)


def main_script() -> tuple[str, str, tuple[str, ...]] | None:
    """Return the script that workers import: its module's name, file and arguments.

    ``None`` if what is defined in ``__main__`` travels by value.
    """
    found = _script_of(sys.modules["__main__"])
    return None if found is None else (found.module, found.path, tuple(sys.argv))


@lru_cache(1)
def _script_of(main: ModuleType) -> Script | None:
    """Return the script that *main* is, and have this process know it, once for each ``__main__``."""
    path, source, file = "", b"", getattr(main, "__file__", None)
    if isinstance(file, str):
        with contextlib.suppress(OSError):  # it is inside an archive, for example
            found = Path(file).absolute()
            if found.is_file():
                path, source = str(found), found.read_bytes()
    script = recognise(
        path,
        source,
        module=getattr(getattr(main, "__spec__", None), "name", ""),
        interactive=hasattr(sys, "ps1")
        or bool(sys.flags.interactive)
        or hasattr(sys, "frozen"),
        imported=main.__name__ == THERE,
    )
    scripts.know(script)
    if script is not None:
        # Workers import the script under that name, so pickles from them need it here.
        sys.modules[THERE] = main
    return script


def check_not_imported(what: str) -> None:
    """Check that this process is no worker that imports the script, before it starts a *what*.

    Raises:
        RuntimeError: If it is one, or should be: then each worker would start a pool with workers.
    """
    if (channel := os.environ.get(STARTS)) is not None:
        # If it runs a program, it will never come to the rest.
        if "-c" not in sys.orig_argv:
            with contextlib.suppress(OSError, ValueError):
                socket.socket(fileno=int(channel)).send(REFUSAL)
        raise RuntimeError(
            f"a {what} is started in a process that was itself started to have workers: a frozen "
            "program must call multiprocessing.freeze_support() first under `if __name__ == "
            "'__main__':`, and what each interpreter imports as it starts must start none"
        )
    path = scripts.importing
    if path:
        raise RuntimeError(
            f"a {what} is started while a worker imports the script {path}: put what "
            "starts it under `if __name__ == '__main__':`"
        )


def recognise(
    path: str,
    source: bytes,
    *,
    module: str = "",
    interactive: bool = False,
    imported: bool = False,
) -> Script | None:
    """Return the script that workers can import; ``None`` if they cannot, or must not.

    Args:
        path: The file of ``__main__``, or ``""``.
        source: The content of that file, or nothing.
        module: The name under which ``python -m`` has found it, or ``""``.
        interactive: Whether the user may define more in it.
        imported: Whether it belongs to a worker, and the process that started the
            worker had it imported.
    """
    # Otherwise there is no guard.
    named = imported or b"__name__" in source
    if not path or interactive or not named:
        return None
    try:
        names = _Names(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):  # it is not Python code
        return None
    if not (names.guarded or imported):
        return None
    # "__main__" is the name of what "python folder" runs.  An import of that name would
    # find another module.
    module = "" if module in {HERE, THERE} else module
    own = frozenset(names.there)
    return Script(module or "", path, own, own - names.elsewhere)


class _Names:
    """The names of globals that the source of a script defines, and where.

    Attributes:
        guarded: Whether a part of it only runs in ``__main__``.
        there: The names that an import defines.
        elsewhere: The names that it defines behind the guard, or when a function is
            called.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.guarded = False
        self.there: set[str] = set()
        self.elsewhere: set[str] = set()
        self._read(tree, self.there)
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                self.elsewhere.update(node.names)

    def _read(self, node: ast.AST, names: set[str]) -> None:
        match node:
            case ast.If():
                there = _truth(node.test, THERE)
                self.guarded = self.guarded or _truth(node.test, HERE) is not there
                self._read(node.test, names)
                for branch, dead in ((node.body, False), (node.orelse, True)):
                    for statement in branch:
                        self._read(
                            statement, self.elsewhere if there is dead else names
                        )
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
                return
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp():
                return
            case ast.GeneratorExp():
                return
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            self._read(child, names)


def _truth(test: ast.expr, name: str) -> bool | None:
    """Return the value of *test* in a module with this name; ``None`` if it is not known."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            truth = _truth(operand, name)
            return None if truth is None else not truth
        case ast.BoolOp(op=op, values=values):
            truths = [_truth(value, name) for value in values]
            decisive = isinstance(op, ast.Or)
            if decisive in truths:
                return decisive
            return None if None in truths else not decisive
        case ast.Compare() if all(map(_is_plain, ast.walk(test))):
            code = compile(ast.Expression(test), "<guard>", "eval")
            try:
                return bool(eval(code, {"__builtins__": {}, "__name__": name}))  # noqa: S307
            except TypeError:  # it looks for a name in a number, for example
                return None
        case _:
            return None


def _is_plain(node: ast.AST) -> bool:
    """Tell whether the value of *node* depends on ``__name__`` at most."""
    return isinstance(node, _PLAIN) or (
        isinstance(node, ast.Name) and node.id == "__name__"
    )
