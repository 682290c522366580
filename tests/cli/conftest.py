"""Commands that run to their end are forked by a process that has imported the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.command import prepared


@pytest.fixture(scope="session", autouse=True)
def prepared_command() -> Iterator[None]:
    """Have the process, from before the first look for what tests leave behind."""
    with prepared():
        yield
