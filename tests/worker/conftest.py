"""Workers by hand, which end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.helpers.gate import short_folder
from tests.helpers.loops import EACH_LOOP
from tests.worker import serves
from tests.worker.by_hand import Door, Worker
from tests.worker.master import Master


@pytest.fixture
def hire() -> Iterator[Callable[..., Worker]]:
    """Start workers."""
    workers: list[Worker] = []

    def hire(
        initializer: Callable[..., object] | None = None, **options: Any
    ) -> Worker:
        workers.append(Worker(initializer, **options))
        return workers[-1]

    yield hire
    for worker in workers:
        worker.close()


@pytest.fixture
def worker(hire: Callable[..., Worker]) -> Worker:
    """A worker that is ready."""
    found = hire()
    found.hello()
    return found


@pytest.fixture
def door() -> Iterator[Door]:
    with short_folder() as folder, closing(Door(folder)) as found:
        yield found


@pytest.fixture
def start() -> Iterator[Callable[..., Master]]:
    """Start workers that serve, which end with the test."""
    masters: list[Master] = []

    def start(target: Any = serves.obey, **options: Any) -> Master:
        masters.append(Master(target, **options))
        return masters[-1]

    yield start
    for master in masters:
        master.close()


@pytest.fixture(params=EACH_LOOP)
def master(start: Callable[..., Master], request: pytest.FixtureRequest) -> Master:
    """One with a worker that obeys."""
    found = start(loop=request.param)
    found.ready()
    return found
