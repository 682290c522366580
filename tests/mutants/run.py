"""Run the tests of a module on one of its mutants, in a process that was forked for it.

The fork has everything imported but the package, which is imported anew with the mutant in
it: that takes half a second where a new interpreter would take two.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

__all__ = ["Outcome", "Trial"]

ROOT = Path(__file__).parents[2]
# A mutant may count up for ever.
_MOST_MEMORY = 4 << 30
_OPTIONS = (
    "-q",
    "-x",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "--no-header",
    "--assert=plain",
)


class Outcome(enum.Enum):
    """What became of a mutant."""

    KILLED = "killed"  # a test failed, or the module could not be imported
    SLOW = "too slow"  # the tests did not end
    LIVES = "lives"  # all tests passed


class Trial:
    """The tests of one mutant, as they run.

    Args:
        path: The module.
        tree: The mutant.
        tests: The files of its tests.
        limit: Seconds after which it hangs.
    """

    def __init__(
        self, path: Path, tree: ast.Module, tests: Sequence[Path], limit: float
    ) -> None:
        self._limit = limit
        self._pid = os.fork()
        if self._pid == 0:
            _run_tests(path, tree, tests)
        with contextlib.suppress(OSError):  # the child has done it, or has ended
            os.setpgid(self._pid, self._pid)
        self._fd = os.pidfd_open(self._pid)

    def end(self) -> Outcome:
        """Wait for the end, and return what it was."""
        readable, _, _ = select.select([self._fd], [], [], self._limit)
        os.close(self._fd)
        if not readable:
            os.killpg(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        if not readable:
            return Outcome.SLOW
        return Outcome.KILLED if status else Outcome.LIVES


def _run_tests(path: Path, tree: ast.Module, tests: Sequence[Path]) -> NoReturn:
    status: int = pytest.ExitCode.INTERNAL_ERROR
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(nowhere, fd)
        sys.dont_write_bytecode = True
        os.environ["HYPOTHESIS_PROFILE"] = "mutants"
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        sys.meta_path.insert(0, _Finder(name, path, tree))
        status = pytest.main([*_OPTIONS, *map(str, tests)])
    finally:
        os._exit(status)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a mutant in the place of its module."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self._name, self._path, self._tree = name, path, tree

    def find_spec(
        self, fullname: str, _path: object, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._tree, self._path, "exec"), module.__dict__)
