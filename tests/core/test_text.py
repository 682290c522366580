"""Tests of asyncpool/_core/base/text.py: what may reach a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.base.text import printable, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("FAKE\x1b[31mRED\x1b[0m", r"FAKE\x1b[31mRED\x1b[0m"),
        ("\x1b]0;pwn\x07\x1b[2J", r"\x1b]0;pwn\x07\x1b[2J"),
        ("10 %\r20 %", r"10 %\x0d20 %"),
        ("C1\x9b2J\x85", r"C1\x9b2J\x85"),
        ("\x7f\x00", r"\x7f\x00"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("ab\u202ecd\u2066", r"ab\u202ecd\u2066"),
        ("a\tb", "a\tb"),
        ("grüße 漢字 😀 \u00a0\ufeff\udcff", "grüße 漢字 😀 \u00a0\ufeff\udcff"),
    ],
)
def test_what_moves_a_terminal_is_escaped_and_nothing_else(
    text: str, shown: str
) -> None:
    assert printable(text) == printable_lines(text) == shown


def test_a_newline_stays_only_where_there_may_be_several_lines() -> None:
    assert printable("a\n2026 CRITICAL b") == r"a\n2026 CRITICAL b"
    assert printable_lines("a\nb\x1b") == "a\nb\\x1b"


@given(st.text())
def test_one_line_is_one_line_and_no_character_controls_anything(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    for kind in map(unicodedata.category, shown.replace("\t", "")):
        assert kind not in {"Cc", "Zl", "Zp"}
    assert printable(shown) == shown
