"""The jobs of one client whose calls the engine has not brought yet; for the agent they are not here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncpool._runtime.agent.relay import Call
from asyncpool._runtime.remote.stored_calls import StoredPayloads
from asyncpool.errors import ProtocolError


class ComingCalls:
    """Waits for calls.

    Args:
        stored: The calls that the engine brings, if it has a store.
        accept: Called with a call that has come.
    """

    def __init__(
        self, stored: StoredPayloads | None, accept: Callable[[Call], object]
    ) -> None:
        self._stored = stored
        self._accept = accept
        self._loop = asyncio.get_running_loop()
        self._coming: dict[int, tuple[Call, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return len(self._coming)

    def wait_for(self, call: Call) -> None:
        """Wait for the call of a job.

        Raises:
            ProtocolError: If nobody brings it, or the job is here already.
        """
        number = call.message.job
        if self._stored is None or number in self._coming:
            raise ProtocolError(
                f"the client sent job {number}, whose call nobody brings"
            )
        self._coming[number] = (
            call,
            self._loop.create_task(
                self._bring(call, self._stored), name="asyncpool stored call"
            ),
        )

    async def _bring(self, call: Call, stored: StoredPayloads) -> None:
        message, since = call.message, self._loop.time()
        payload = await stored.get(message.job)
        del self._coming[message.job]
        waited = self._loop.time() - since
        deadline, wait = message.deadline - waited, message.wait - waited
        message = message._replace(deadline=max(0.0, deadline), wait=max(0.0, wait))
        self._accept(call._replace(message=message, payload=payload))

    def get(self, number: int) -> Call | None:
        """Return what is known of a job whose call has not come."""
        found = self._coming.get(number)
        return None if found is None else found[0]

    def cancel(self, number: int) -> Call | None:
        """Wait no more for the call of a job; return what is known of it, if it was awaited."""
        call, task = self._coming.pop(number, (None, None))
        if task is not None:
            task.cancel()
        return call

    def forget(self, number: int) -> None:
        """Note that nobody wants the call of a job any more."""
        if self._stored is not None:
            self._stored.forget(number)

    def close(self) -> None:
        """Wait for nothing more."""
        for _, task in self._coming.values():
            task.cancel()
        self._coming.clear()
