"""The ``__main__`` of this process: whether workers can import it, and what they then import.

``multiprocessing`` imports each script in its workers, under the name ``__mp_main__``.
So what a script starts must be behind ``if __name__ == "__main__":``.  This module
takes that guard as the sign that a script may be imported.
"""

from __future__ import annotations

import ast
import contextlib
import os
import socket
import stat
import sys
from pathlib import Path
from types import ModuleType

from asyncpool._core.main import main_module
from asyncpool._core.main.main_module import Script
from asyncpool._system.processes import MARK, REFUSAL

HERE, THERE = "__main__", "__mp_main__"

# What a comparison of the module's name with others is made of.
_PLAIN = (
    *(ast.Compare, ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Load),
    *(ast.Constant, ast.Tuple, ast.List, ast.Set),
)


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
        script = recognise(
            *_file_of(main),
            module=getattr(getattr(main, "__spec__", None), "name", ""),
            interactive=hasattr(sys, "ps1")
            or bool(sys.flags.interactive)
            or hasattr(sys, "frozen"),
            imported=main.__name__ == THERE,
        )
        main_module.know(script)
        _Seen.main, _Seen.script = main, script
        if script is not None:
            # Workers import the script under that name, so pickles from them need it here.
            sys.modules[THERE] = main
    found = _Seen.script
    return None if found is None else (found.module, found.path, tuple(sys.argv))


def check_not_imported(what: str) -> None:
    """Check that this process is no worker that imports the script, before it starts a *what*.

    Raises:
        RuntimeError: If it is one, or should be: then each worker would start a pool with workers.
    """
    if (channel := os.environ.get(MARK)) is not None:
        # If it runs a program, it will never come to the rest.
        if "-c" not in sys.orig_argv:
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


def _file_of(main: ModuleType) -> tuple[str, bytes]:
    """Return its path and its content; nothing if it has no file of its own."""
    file: object = getattr(main, "__file__", None)
    if isinstance(file, str):
        with contextlib.suppress(OSError):  # it is inside an archive, for example
            found = Path(file).absolute()
            if stat.S_ISREG(found.stat().st_mode):
                return str(found), found.read_bytes()
    return "", b""


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
                self._read_if(node, names)
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

    def _read_if(self, node: ast.If, names: set[str]) -> None:
        there = _truth(node.test, THERE)
        self.guarded = self.guarded or _truth(node.test, HERE) is not there
        self._read(node.test, names)
        for statement in node.body:
            self._read(statement, self.elsewhere if there is False else names)
        for statement in node.orelse:
            self._read(statement, self.elsewhere if there is True else names)


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
            code = compile(ast.Expression(test), "guard", "eval")
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
