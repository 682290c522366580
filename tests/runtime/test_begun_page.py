"""The memory in which an agent notes which jobs begin."""

from __future__ import annotations

import os

import pytest

from asyncpool._runtime.remote.begun_page import make_page, open_page
from asyncpool._system.memory import available

pytestmark = pytest.mark.skipif(not available(), reason="memory cannot be sealed here")


def test_both_ends_see_which_jobs_have_begun() -> None:
    made = make_page(8)
    assert made is not None
    fd, page = made
    other = open_page(os.getpid(), fd, 8)
    os.close(fd)
    assert other is not None
    assert not other.has_begun(3, 77)
    page.mark(3, 77)
    assert other.has_begun(3, 77)
    assert not other.has_begun(3, 78)


def test_what_could_be_taken_away_is_not_used() -> None:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, 4096)
        assert open_page(os.getpid(), fd, 8) is None
    finally:
        os.close(fd)
    made = make_page(8)
    assert made is not None
    fd, _ = made
    assert open_page(os.getpid(), fd, 9) is None  # it is too small
    os.close(fd)
    assert open_page(os.getpid(), 10**6, 8) is None
    assert open_page(None, 3, 8) is None
    assert open_page(os.getpid(), 0, 8) is None
