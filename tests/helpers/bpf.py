"""Run a filter of system calls as the kernel does, on calls that are made up."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_LOAD, _EQUAL, _AT_LEAST, _SKIP, _AND, _RETURN = 0x20, 0x15, 0x35, 0x05, 0x54, 0x06


def answer(
    program: Sequence[tuple[int, int, int, int]],
    machine: int,
    number: int,
    arguments: Sequence[int] = (),
) -> int:
    """Return what a filter answers to a call."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, machine, 0, *words)
    at, value = 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        if code == _RETURN:
            return operand
        if code == _LOAD:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == _AND:
            value &= operand
        elif code == _EQUAL:
            at += if_true if value == operand else if_false
        elif code == _AT_LEAST:
            at += if_true if value >= operand else if_false
        elif code == _SKIP:
            at += operand
        else:
            raise AssertionError(f"no such instruction: {code:#x}")
