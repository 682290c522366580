from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncpool._core.sandbox.system_calls import MACHINES, NEWEST, X32_BIT, numbers

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def listed(header: Path) -> Iterator[tuple[str, int]]:
    for line in header.read_text().splitlines():
        found = re.match(r"#define __NR(?:3264)?_(\w+)\s+(\d+)$", line)
        if found:
            yield found[1], int(found[2])


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("the headers of the kernel are not installed")
    theirs = dict(listed(HEADERS[machine]))
    ours = numbers(machine)
    known = {name: number for name, number in ours.items() if name in theirs}
    assert known == {name: theirs[name] for name in known}
    # What this header does not know is newer than the header.
    newest = max(number for name, number in theirs.items() if name != "syscalls")
    assert {ours[name] for name in set(ours) - set(theirs)} <= {
        *range(newest + 1, NEWEST + 1)
    }


@pytest.mark.parametrize("machine", MACHINES)
def test_no_number_stands_twice_or_is_out_of_range(machine: str) -> None:
    found = list(numbers(machine).values())
    assert len(set(found)) == len(found)
    assert max(found) <= NEWEST < X32_BIT


def test_machines_of_one_table_have_the_same_numbers() -> None:
    assert numbers("aarch64") == numbers("riscv64")
    assert "fork" in numbers("x86_64")
    assert "fork" not in numbers("aarch64")
