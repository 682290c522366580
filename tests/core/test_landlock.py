from __future__ import annotations

import pytest

from asyncpool._core.sandbox import landlock


@pytest.mark.parametrize(
    ("version", "files", "network", "scopes"),
    [
        (0, 0, 0, 0),
        (1, (1 << 13) - 1, 0, 0),
        (2, (1 << 14) - 1, 0, 0),
        (3, (1 << 15) - 1, 0, 0),
        (4, (1 << 15) - 1, 3, 0),
        (5, (1 << 16) - 1, 3, 0),
        (6, (1 << 16) - 1, 3, 3),
        (9, (1 << 16) - 1, 3, 3),
    ],
)
def test_each_version_is_asked_for_what_it_knows(
    version: int, files: int, network: int, scopes: int
) -> None:
    assert landlock.files_handled(version) == files
    assert landlock.network_handled(version) == network
    assert landlock.scopes(version) == scopes


def test_who_may_write_makes_no_devices_and_runs_nothing() -> None:
    for right in (landlock.MAKE_CHAR, landlock.MAKE_BLOCK, landlock.MAKE_SOCK):
        assert not landlock.WRITE & right
    assert not landlock.WRITE & landlock.EXECUTE
    assert landlock.WRITE & landlock.READ == landlock.READ
