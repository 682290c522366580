"""One cluster for each module: it takes some seconds to start."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from importlib.util import find_spec

import pytest
import pytest_asyncio

from asyncpool.ray import Pool
from tests.helpers.ray_clusters import LocalNodes, local_nodes

# Without Ray, which is in no other extra, these tests are not there.
collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/ray/" in str(item.path):
            # Ray starts and ends processes of its own whenever it likes.
            item.add_marker(pytest.mark.leaks_allowed)


@pytest.fixture(scope="module")
def cluster() -> Generator[LocalNodes]:
    with local_nodes() as nodes:
        yield nodes


@pytest_asyncio.fixture
async def pool(cluster: LocalNodes) -> AsyncGenerator[Pool]:
    async with Pool(cluster.address, workers_per_node=2, resources={}) as pool:
        yield pool
