from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.sandbox.filters import (
    ALLOW,
    EPERM,
    KILL,
    Check,
    Rule,
    containing,
    never,
    only,
    packed,
    program,
    without,
)
from asyncpool._core.sandbox.system_calls import MACHINES, NEWEST, X32_BIT, numbers
from tests.helpers.bpf import answer

ARCH, _ = MACHINES["x86_64"]
CALLS = numbers("x86_64")
REFUSED = 0x00050000 | EPERM
NO_SUCH_CALL = 0x00050000 | 38
READ = 0


def told(rules: list[Rule], call: str, *arguments: int) -> int:
    return answer(program(rules, "x86_64"), ARCH, CALLS[call], arguments)


def test_what_no_rule_names_is_allowed() -> None:
    assert answer(program([], "x86_64"), ARCH, READ) == ALLOW
    assert answer(program([Rule("mount")], "x86_64"), ARCH, READ) == ALLOW


def test_a_rule_without_checks_refuses_whatever_the_arguments_are() -> None:
    rules = [Rule("mount"), Rule("bpf", (), 7)]
    assert told(rules, "mount", 1, 2, 3) == REFUSED
    assert told(rules, "bpf") == 0x00050000 | 7


def test_another_table_of_calls_kills_and_calls_that_nobody_knows_are_not_there() -> (
    None
):
    code = program([], "x86_64")
    assert answer(code, MACHINES["aarch64"][0], READ) == KILL
    assert answer(code, 0x40000003, READ) == KILL  # 32-bit programs of x86
    assert answer(code, ARCH, X32_BIT) == NO_SUCH_CALL
    assert answer(code, ARCH, NEWEST) == ALLOW
    assert answer(code, ARCH, NEWEST + 1) == NO_SUCH_CALL


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (only(1, 3, 5), [3, 5], [0, 4, 6, 0xFFFFFFFF]),
        (only(1, 1, mask=0xF), [1, 0x801, 0x80001], [2, 0x802]),
        (never(1, 3, 5), [0, 4, 6], [3, 5]),
        (without(1, 0x30), [0, 0xF, 0x40], [0x10, 0x20, 0x30, 0x71]),
        (containing(1, 0x30), [0x30, 0xFF], [0, 0x10, 0x20]),
    ],
)
def test_a_check_looks_at_its_argument(
    check: Check, good: list[int], bad: list[int]
) -> None:
    rules = [Rule("ioctl", (check,)), Rule("mount")]
    for value in good:
        assert told(rules, "ioctl", 9, value) == ALLOW
        # The upper half of a word is none of an int's bits, and the kernel drops it too.
        assert told(rules, "ioctl", 9, value | 1 << 40) == ALLOW
    for value in bad:
        assert told(rules, "ioctl", 9, value) == REFUSED
    assert told(rules, "mount") == REFUSED, "a rule behind it still counts"


@given(st.integers(0, 7), st.integers(0, 7))
def test_a_call_needs_all_its_checks(first: int, second: int) -> None:
    rules = [Rule("socket", (only(0, 1, 2), never(1, 5), without(1, 2)))]
    good = first in {1, 2} and second != 5 and not second & 2
    assert told(rules, "socket", first, second) == (ALLOW if good else REFUSED)


def test_a_machine_is_not_asked_for_calls_that_it_does_not_have() -> None:
    assert program([Rule("fork")], "aarch64") == program([], "aarch64")


def test_the_kernel_gets_eight_bytes_for_each_instruction() -> None:
    assert packed([(0x15, 1, 2, 0xC000003E)]) == struct.pack(
        "=HBBI", 0x15, 1, 2, 0xC000003E
    )
