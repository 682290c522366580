"""The way of a client's jobs to an agent, or into the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from asyncpool._core.options import JobOptions
from asyncpool._engine.job import JOB_TYPES, PoolJob
from asyncpool._engine.large import Packer
from asyncpool._engine.traffic import FunctionTables
from asyncpool._remote.nodes import no_agent
from asyncpool._remote.reliable_link import MAX_PAYLOAD
from asyncpool._remote.stored_calls import StoredArguments, StoredCall
from asyncpool._wire.buffers import HEAVY, OutOfBandPickle, OverLimitError
from asyncpool._wire.pickling import too_large
from asyncpool._wire.text import function_name
from asyncpool.errors import JobNotPicklableError, PoolFullError

if TYPE_CHECKING:
    from asyncpool._remote.client import Client

# How many large calls are pickled ahead of those that an agent has.
_PACKED_AHEAD = 3


class Submissions(Packer):
    """Takes the calls of one client.

    Args:
        client: The client.
        functions: What it knows of functions.
        max_queued: How many jobs may wait for an agent; ``None`` for no bound.

    Attributes:
        stored: Finds arguments that are in a store of the engine, if that has one.
    """

    def __init__(
        self,
        client: Client,
        functions: FunctionTables,
        max_queued: int | None,
    ) -> None:
        self._client = client
        self._functions, self._max_queued = functions, max_queued
        self._loop = asyncio.get_running_loop()
        super().__init__(client.threads, lambda: _PACKED_AHEAD, MAX_PAYLOAD)
        self.stored: StoredArguments | None = None

    def are_stored(self, items: list[Any], *, star: bool) -> bool:
        """Tell whether a store of the engine has arguments of a map's *items*.

        Raises:
            TypeError: If there are such, and the pool takes none.
        """
        if self.stored is None:
            return False
        return self.stored.are_in(chain.from_iterable(items) if star else items)

    async def room(self) -> None:
        """Wait until jobs that wait have left the queue.

        Cancellation:
            Safe.
        """
        while self._is_full() and self._client.nodes.any:
            await self._client.nodes.next_turn()

    def submit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> PoolJob[Any]:
        """Queue a call, or send it to an agent; return its future."""
        client = self._client
        client.check_loop()
        self.check(options)
        stored, called, name = self.stored, function, options.name
        if stored is None or not stored.are_in((*args, *kwargs.values())):
            stored = None
        else:
            called, name = stored.function, name or function_name(function)
        known = self._functions.of(options).find(called, name, options.via)
        job: PoolJob[Any] = JOB_TYPES[options.via](
            client.registry.next_id(), known, options, client, self._loop
        )
        payload: bytes | OutOfBandPickle | StoredCall
        try:
            if stored is None:
                payload = known.serializer.pack_job(
                    function, args, kwargs, number=known.number, limit=HEAVY
                )
                size = len(payload)
            else:
                payload = stored.pack(function, args, kwargs)
                size = len(payload.call)
        except OverLimitError:
            return self._submit_large(job, (function, args, kwargs))
        except BaseException as error:  # noqa: BLE001 - an argument's
            return client.registry.refuse(job, error)
        if size > MAX_PAYLOAD:
            return client.registry.refuse(job, too_large(size, MAX_PAYLOAD))
        self._enter(job)
        job.payload = payload
        self.queue(job)
        return job

    def check(self, options: JobOptions) -> None:
        """Check that the client takes a job.

        Raises:
            PoolClosedError: If it is closed, or has no agent.
            PoolFullError: If too many jobs wait.
        """
        draining = self._client.draining
        closed = draining.closed and options.hold not in draining.holds
        if closed or not self._client.nodes.any:
            raise no_agent(self._client.title)
        if self._is_full() and options.session is None:
            if options.hold is None:
                self._client.registry.figures.refused += 1
            assert self._max_queued is not None
            raise PoolFullError(
                waiting=self._client.jobs.waiting, max_queued=self._max_queued
            )

    def _is_full(self) -> bool:
        most = self._max_queued
        return most is not None and self._client.jobs.waiting >= most

    def _enter(self, job: PoolJob[Any]) -> None:
        self._client.registry.enter(job)
        self._client.draining.busy()
        if job.options.timed:
            self._client.waits.begin(job)

    def _submit_large(self, job: PoolJob[Any], call: Any) -> PoolJob[Any]:
        self._enter(job)
        self._client.jobs.prepare(job.id)
        self.add(job, call)
        return job

    def refused(self, job: PoolJob[Any], error: JobNotPicklableError) -> None:
        """End a job whose call cannot be pickled."""
        self._client.drop(job)
        self._client.registry.fail(job, error)
        self._client.draining.look()

    def queue(self, job: PoolJob[Any]) -> None:
        """Put a job into the queue, or send it to an agent."""
        options = job.options
        if options.session is not None:
            self._client.sessions.enqueue(job, options.session.session)
            return
        node = self._client.jobs.submit(
            job.id,
            job.function.traits,
            key=options.key,
            priority=options.priority,
        )
        if node is not None:
            self._client.nodes.send(node, [job.id])
