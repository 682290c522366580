"""What stands for a supervisor where a job is by itself."""

from __future__ import annotations

from typing import Any

from asyncpool._engine.job import Job, StreamJob

__all__ = ["Owner"]


class Owner:
    """Nobody is running, and nobody minds."""

    def pid_of(self, _: Job[Any], /) -> None:
        """Have no process."""

    def is_running(self, _: Job[Any], /) -> bool:
        return False

    def on_cancel(self, _: Job[Any], /) -> None:
        pass

    async def stack_of(self, _: Job[Any], /) -> str:
        return ""

    def give_credit(self, _: StreamJob, /) -> None:
        pass
