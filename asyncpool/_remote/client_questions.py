"""What a client has asked the agent, and what it has got by that: answers, workers, events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from asyncpool._engine.sessions import SessionWorker
from asyncpool._remote.agent_answers import Answers, event_for_client, numbers_of
from asyncpool._remote.messages import Kind, Message
from asyncpool._remote.objects import pack_own
from asyncpool._remote.relay import Relay
from asyncpool.errors import ProtocolError
from asyncpool.events import Event

if TYPE_CHECKING:
    from asyncpool._remote.agent_client import AgentClient

# How many questions may be open at once: some last as long as a broadcast does.
_MOST_QUESTIONS = 256


class ClientQuestions:
    """The questions of one client.

    Args:
        client: The client.
        answers: Answers them.
        relay: Takes workers back.

    Attributes:
        jobs: The jobs of the client that the pool has.
        workers: The workers that belong to the client, by the number that it has given them.
    """

    def __init__(self, client: AgentClient, answers: Answers, relay: Relay) -> None:
        self._client, self._answers, self._relay = client, answers, relay
        self._loop = asyncio.get_running_loop()
        self.jobs = client.jobs
        self.workers: dict[int, SessionWorker] = {}
        self._told: dict[int, tuple[int, bool]] = {}  # of workers
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stop_listening: Callable[[], object] | None = None

    @property
    def listens(self) -> bool:
        """Whether the client hears of events."""
        return self._stop_listening is not None

    def on_ask(self, message: Message) -> None:
        """Hear a question.

        Raises:
            ProtocolError: If there are too many.
        """
        number = message.job
        if number in self._tasks or len(self._tasks) >= _MOST_QUESTIONS:
            raise ProtocolError(f"the client asked more than {_MOST_QUESTIONS} at once")
        task = self._tasks[number] = self._loop.create_task(
            self._answer(message), name="asyncpool answer to a client"
        )
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _answer(self, message: Message) -> None:
        answer = pack_own(await self._answers.answer(self, message))
        self._client.put(Message(Kind.ANSWER, message.job, payload=answer))
        self._client.send_soon()

    def on_forget(self, message: Message) -> None:
        """Hear that nobody waits for an answer any more."""
        task = self._tasks.get(message.job)
        if task is not None:
            task.cancel()
        self._leave(message.job, fresh=False)

    def close(self) -> None:
        """Answer nothing more, and take the workers back."""
        if self._stop_listening is not None:
            self._stop_listening()
        for task in self._tasks.values():
            task.cancel()
        for worker in self.workers.values():
            self._relay.leave(worker, fresh=True, failed=True)

    # Events.

    def tell(self, event: Event) -> None:
        """Tell of an event of the pool."""
        told = event_for_client(event, numbers_of(self.jobs))
        if told is not None:
            self._client.put_news(Message(Kind.EVENT, payload=pack_own(told)))

    def listen(self, stop: Callable[[], object]) -> None:
        """Note that the client hears of events until *stop* is called."""
        if self._stop_listening is not None:
            self._stop_listening()
        self._stop_listening = stop

    # Workers.

    def on_leave(self, message: Message) -> None:
        """Hear that the client gives a worker back."""
        self._leave(message.job, fresh=bool(message.options))

    def lend(self, number: int, worker: SessionWorker) -> None:
        """Note that a worker belongs to the client, which has asked for it by that number."""
        self.workers[number] = worker
        self._told[number] = (worker.pid, False)

    def tell_workers(self) -> None:
        """Tell which processes the workers are, and whether they are gone, if that is new."""
        for number, worker in self.workers.items():
            state = (worker.pid, worker.gone)
            if self._told[number] != state:
                told = (worker.slot, worker.pid, worker.gone, worker.crash)
                self._client.put(Message(Kind.WORKER, number, payload=pack_own(told)))
            self._told[number] = state

    def _leave(self, number: int, *, fresh: bool) -> None:
        worker = self.workers.pop(number, None)
        self._told.pop(number, None)
        if worker is not None:
            self._relay.leave(worker, fresh=fresh, failed=False)
