"""Start an interpreter with the flags and the asyncpool of this process, and with its ``__main__``.

``multiprocessing`` imports each script in its workers, under the name ``__mp_main__``.
So what a script starts must be behind ``if __name__ == "__main__":``.  This module
takes that guard as the sign that a script may be imported.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import socket
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from asyncpool._wire import scripts
from asyncpool._wire.posix import FROZEN, REFUSAL, STARTS
from asyncpool._wire.scripts import Script

# The new process needs the asyncpool of this process, even if another one is installed.  So its
# directory comes first while asyncpool is imported, and last before anything else is imported.
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); import asyncpool; "
    "sys.path.append(sys.path.pop(0)); "
    "from asyncpool._worker.process import main; main()"
)
_ROOT = str(Path(__file__).parents[2])


def worker_command() -> tuple[str, ...]:
    """Return the command line of a worker that starts as a fresh interpreter, up to its role."""
    executable, is_frozen = program()
    if is_frozen:
        return executable, FROZEN
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


HERE, THERE = "__main__", "__mp_main__"


def main_script() -> tuple[str, str, tuple[str, ...]] | None:
    """Return the script that workers import: its module's name, file and arguments.

    ``None`` if what is defined in ``__main__`` travels by value.
    """
    found = _script_of(sys.modules["__main__"])
    return None if found is None else (found.module, found.path, tuple(sys.argv))


@lru_cache(1)
def _script_of(main: ModuleType) -> Script | None:
    """Return the script that *main* is, and have this process know it, once for each ``__main__``."""
    script, file = None, getattr(main, "__file__", None)
    # The user may define more in it.
    grows = hasattr(sys, "ps1") or sys.flags.interactive or hasattr(sys, "frozen")
    if isinstance(file, str) and not grows:
        path = Path(file).absolute()
        with contextlib.suppress(OSError):  # it is inside an archive, for example
            if path.is_file():
                name = getattr(getattr(main, "__spec__", None), "name", "")
                known = main.__name__ == THERE
                script = recognise(str(path), path.read_bytes(), name, imported=known)
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
    path: str, source: bytes, module: str = "", *, imported: bool = False
) -> Script | None:
    """Return the script that workers can import; ``None`` if they must not.

    Args:
        path: The file of ``__main__``.
        source: The content of that file.
        module: The name under which ``python -m`` has found it, or ``""``.
        imported: Whether it belongs to a worker, and the process that started the
            worker had it imported.
    """
    if not (imported or b"__name__" in source):
        return None  # there is no guard
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # it is not Python code
        return None
    guarded = imported
    # The names that an import defines; and those that are defined in a part which only runs in
    # ``__main__``, or when a function is called.
    own, elsewhere = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            elsewhere.update(node.names)
    rest: list[tuple[ast.AST, set[str]]] = [(tree, own)]
    while rest:
        node, names = rest.pop()
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                must, may = truth = _truth(test, THERE)
                guarded = guarded or truth != _truth(test, HERE)
                rest.append((test, names))
                rest += [(it, names if may else elsewhere) for it in body]
                rest += [(it, elsewhere if must else names) for it in orelse]
                continue
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
                continue
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp():
                continue
            case ast.GeneratorExp():
                continue
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case _:
                pass
        rest += [(child, names) for child in ast.iter_child_nodes(node)]
    if not guarded:
        return None
    # "__main__" is the name of what "python folder" runs.  An import of that name would
    # find another module.
    module = "" if module in {HERE, THERE} else module
    return Script(module or "", path, frozenset(own), frozenset(own - elsewhere))


# What a comparison of the module's name with others is made of.
_PLAIN = (
    *(ast.Compare, ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Load),
    *(ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Name),
)


def _truth(test: ast.expr, name: str) -> tuple[bool, bool]:
    """Return whether *test* must, and whether it may be true in a module with this name."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            must, may = _truth(operand, name)
            return not may, not must
        case ast.BoolOp(op=op, values=values):
            parts = zip(*(_truth(value, name) for value in values), strict=True)
            must, may = map(any if isinstance(op, ast.Or) else all, parts)
            return must, may
        case ast.Compare() if all(isinstance(it, _PLAIN) for it in ast.walk(test)):
            code = compile(ast.Expression(test), "<guard>", "eval")
            # There are other names in it, or it looks for one in a number, for example.
            with contextlib.suppress(NameError, TypeError):
                value = bool(eval(code, {"__builtins__": {}, "__name__": name}))  # noqa: S307
                return value, value
    return False, True
