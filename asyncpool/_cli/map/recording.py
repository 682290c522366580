"""What a run of ``asyncpool map`` notes for its report."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

from asyncpool._cli.page.report import report_page
from asyncpool._cli.targets import call_item, trouble
from asyncpool._core.base.names import function_name
from asyncpool._core.control.control_protocol import Request
from asyncpool._core.history.history import History
from asyncpool._observe.control.local_orders import LocalOrders
from asyncpool._observe.control.pool_control import PoolAnswers
from asyncpool.pool import Pool

# Seconds between two looks at the pool, and how many jobs each tells of.
_EVERY = 0.5
_JOBS = 400

# Seconds after which a look reads the figures anew.
_STALE = 0.06


class Recording:
    """Watches the pool of a run, from its start to its end.

    Args:
        pool: The pool, which has been started.
        concurrency: How many jobs each worker runs at once.
    """

    def __init__(self, pool: Pool, concurrency: int) -> None:
        # As a client of its control socket would, without the socket.
        life = pool._life  # noqa: SLF001 - the pool knows none of those who watch it
        orders = LocalOrders(life)
        watching = PoolAnswers(orders, life.hub, pool.name, concurrency).watching
        self._watcher = watching.watch(Request("watch", every=_EVERY, jobs=_JOBS))
        self._history = History(whole=True)
        self._task = asyncio.create_task(self._look(), name="asyncpool map: report")

    async def end(self) -> dict[str, Any]:
        """Look for the last time, and return what the report shows.

        Cancellation:
            Safe: nothing goes on.
        """
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        # Figures are kept for others who look in the same moment, and a short run is one.
        await asyncio.sleep(_STALE)
        self._history.add(self._watcher.look())
        self._watcher.close()
        return self._history.since(0)

    async def _look(self) -> None:
        while True:
            self._history.add(self._watcher.look())
            await asyncio.sleep(_EVERY)


def write_report(path: str, target: str, shown: dict[str, Any]) -> str:
    """Write the report of a run; return why that was not possible, or ``""``.

    A reader never sees half of it.

    Args:
        path: The file, which is replaced.
        target: The function of the user's.
        shown: What :meth:`Recording.end` has returned.
    """
    page = report_page(target, _of_users(shown, target))
    place = Path(path)
    unfinished = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        if place.exists() and not place.is_file():  # /dev/stdout, for one
            place.write_text(page, "utf-8")
        else:
            unfinished.write_text(page, "utf-8")
            unfinished.replace(place)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return f"cannot write the report {path}: {error.strerror}"
    return ""


def _of_users(shown: dict[str, Any], target: str) -> dict[str, Any]:
    """Name the user's function, not the one of this command that calls it."""
    called, own = function_name(call_item), function_name(trouble)
    names: list[str] = shown["names"]
    left_out = {number for number, name in enumerate(names) if name == own}
    rows = [row for row in shown["functions"] if row["name"] != own]
    return {
        **shown,
        "names": [target if name == called else name for name in names],
        "jobs": [job for job in shown["jobs"] if job[1] not in left_out],
        "functions": [
            {**row, "name": target} if row["name"] == called else row for row in rows
        ],
        "crashes": [
            {**crash, "function": target} if crash["function"] == called else crash
            for crash in shown["crashes"]
        ],
    }
