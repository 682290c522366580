"""The pools and servers of this user: found by their control sockets, and watched."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import anyio
import anyio.abc

from asyncpool._cli.dashboard.asking import watch
from asyncpool._core.history.history import History
from asyncpool._runtime.control.paths import path_of, socket_names
from asyncpool.errors import ProtocolError

# Seconds between two lines of a program, and how many jobs each may tell of.
_EVERY = 0.5
_JOBS = 100

# Seconds between two looks for programs: new ones, and those that have ended.
_LOOK = 0.5
# Seconds that a program is shown after its end.
_KEPT = 600.0

_MOST_PROGRAMS = 100

_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)


class Program:
    """One pool or server.

    Attributes:
        name: What its control socket is called.
        history: What is known of it.
        lives: Whether it answers.
        problem: Why it cannot be shown as it is, or ``""``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.history = History()
        self.lives = False
        self.problem = ""

    @property
    def is_known(self) -> bool:
        """Whether there is anything to show: a dead program may leave its socket behind."""
        return self.history.cursor > 0 or bool(self.problem)

    def line(self) -> dict[str, Any]:
        """Return what the list of programs says of it."""
        return {
            "name": self.name,
            "lives": self.lives,
            "problem": self.problem,
            **self.history.summary(),
        }


class Programs:
    """All of them.

    Args:
        on_news: Called when anything has changed.

    Attributes:
        problem: Why programs cannot be found, or ``""``.
    """

    def __init__(self, on_news: Callable[[], object]) -> None:
        self.problem = ""
        self._on_news = on_news
        self._all: dict[str, Program] = {}

    def lines(self) -> list[dict[str, Any]]:
        """Return what is said of each, by name."""
        known = [program for program in self._all.values() if program.is_known]
        return [program.line() for program in sorted(known, key=lambda each: each.name)]

    def get(self, name: str) -> Program | None:
        """Return a program by its name."""
        return self._all.get(name)

    async def run(self) -> None:
        """Find programs, and watch them.

        Cancellation:
            Ends it; the programs do not notice.
        """
        async with anyio.create_task_group() as tasks:
            while True:
                self._look(tasks)
                await asyncio.sleep(_LOOK)

    def _look(self, tasks: anyio.abc.TaskGroup) -> None:
        for name in self._names():
            if name not in self._all and len(self._all) < _MOST_PROGRAMS:
                program = self._all[name] = Program(name)
                tasks.start_soon(
                    self._follow, program, name=f"asyncpool dashboard: {name}"
                )

    def _names(self) -> list[str]:
        names, problem = list[str](), ""
        try:
            names = socket_names()
        except OSError as error:
            problem = str(error)
        if problem != self.problem:
            self.problem = problem
            self._on_news()
        return names

    async def _follow(self, program: Program) -> None:
        """Watch a program, and its successors of the same name, until there is none for long."""
        loop = asyncio.get_running_loop()
        ended_at = loop.time()
        while program.is_known or program.name in self._names():
            if await self._watch(program):
                ended_at = loop.time()
            elif loop.time() - ended_at > _KEPT:
                break
            await asyncio.sleep(_LOOK)
        del self._all[program.name]
        self._on_news()

    async def _watch(self, program: Program) -> bool:
        """Watch a program to its end; tell whether it has answered at all."""
        before, problem = program.history.cursor, ""
        try:
            lines = watch(path_of(program.name), every=_EVERY, jobs=_JOBS)
            async with contextlib.aclosing(lines):
                async for line in lines:
                    program.history.add(line)
                    program.lives, program.problem = True, ""
                    self._on_news()
        except TimeoutError:
            problem = "It does not answer: its process is stopped, or hangs."
        except PermissionError as error:
            problem = str(error)
        except OSError:
            pass  # it has ended
        except ProtocolError as error:
            problem = f"It cannot be watched: {error}."
        except _UNREADABLE as error:
            problem = f"Its figures are of another version of asyncpool: {error!r}."
        if (program.lives, program.problem) != (False, problem):
            program.lives, program.problem = False, problem
            self._on_news()
        return program.history.cursor > before
