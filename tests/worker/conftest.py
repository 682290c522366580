"""Workers by hand, which end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.helpers.gate import short_folder
from tests.worker.by_hand import Door, Worker


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
