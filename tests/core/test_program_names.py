"""By which names commands find pools and servers."""

from __future__ import annotations

import pytest

from asyncpool._core.base.names import is_name


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("app", True),
        ("my-app_2.web:8000", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("", False),
        (".", False),
        ("..", False),
        (".hidden", False),
        ("-rf", False),
        ("a/b", False),
        ("a b", False),
        ("a\0", False),
        ("ä", False),
    ],
)
def test_names(text: str, good: bool) -> None:  # noqa: FBT001
    assert is_name(text) is good
