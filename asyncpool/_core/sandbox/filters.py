"""The filter of system calls as data: rules, and the program that the kernel runs for them.

The program is classic BPF (see seccomp(2)).  It sees the number of a call and its arguments, but
not what they point to.  So it refuses a call as a whole, or by a number or by flags.
"""

from __future__ import annotations

import struct

from asyncpool._core.base.records import Record
from asyncpool._core.sandbox.system_calls import MACHINES, NEWEST, X32_BIT, numbers

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterable

# An instruction: its code, how many to skip if it is true, and if not, and its operand.
Instruction = tuple[int, int, int, int]

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_GREATER = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
KILL = 0x80000000  # SECCOMP_RET_KILL_PROCESS
_ERROR = 0x00050000  # SECCOMP_RET_ERRNO

# Linux's numbers, which the module errno of another system would not have.
EPERM, ENOSYS, ENOTSUP = 1, 38, 95

# struct seccomp_data: the number, the machine, the instruction pointer, six arguments.
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16


class Check(Record):
    """A condition on one argument, of which the lower 32 bits count.

    Attributes:
        argument: Which one, from 0.
        mask: The bits that are looked at.
        values: Some values of these bits.
        among: Whether the bits must be one of *values*, or none of them.
    """

    argument: int
    mask: int
    values: tuple[int, ...]
    among: bool = True


class Rule(Record):
    """A system call that is refused.

    Attributes:
        call: Its name.
        unless: It is allowed if each of these is true; without any it is always refused.
        error: What it fails with.
    """

    call: str
    unless: tuple[Check, ...] = ()
    error: int = EPERM


_ALL_BITS = 0xFFFFFFFF


def only(argument: int, *values: int, mask: int = _ALL_BITS) -> Check:
    """Return the check that an argument is one of *values*, of which only *mask* counts."""
    return Check(argument, mask, values)


def never(argument: int, *values: int) -> Check:
    """Return the check that an argument is none of *values*."""
    return Check(argument, _ALL_BITS, values, among=False)


def without(argument: int, bits: int) -> Check:
    """Return the check that an argument has none of *bits*."""
    return Check(argument, bits, (0,))


def containing(argument: int, bits: int) -> Check:
    """Return the check that an argument has all of *bits*."""
    return Check(argument, bits, (bits,))


def program(rules: Iterable[Rule], machine: str) -> tuple[Instruction, ...]:
    """Return the program for *rules*; calls that a machine does not have are left out."""
    arch, _ = MACHINES[machine]
    known = numbers(machine)
    code: list[Instruction] = [
        (_LOAD, 0, 0, _MACHINE),
        # Another table of calls, such as that of 32-bit programs, has other numbers.
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += _refuse_if((_GREATER, X32_BIT - 1), ENOSYS)
    code += _refuse_if((_GREATER, NEWEST), ENOSYS)
    for rule in rules:
        if rule.call in known:
            body = _body(rule)
            code += [(_EQUAL, 0, len(body), known[rule.call]), *body]
    code.append((_RETURN, 0, 0, ALLOW))
    return tuple(code)


def _refuse_if(test: tuple[int, int], error: int) -> list[Instruction]:
    code, operand = test
    return [(code, 0, 1, operand), (_RETURN, 0, 0, _ERROR | error)]


def _body(rule: Rule) -> list[Instruction]:
    """Return what is done for one call; it ends with an answer on each way."""
    refuse: Instruction = (_RETURN, 0, 0, _ERROR | rule.error)
    code: list[Instruction] = []
    for check in rule.unless:
        code.append((_LOAD, 0, 0, _ARGUMENTS + 8 * check.argument))
        if check.mask != _ALL_BITS:
            code.append((_AND, 0, 0, check.mask))
        if check.among:
            # Each skips the other values, and the refusal behind them.
            last = len(check.values)
            code += [(_EQUAL, last - i, 0, v) for i, v in enumerate(check.values)]
            code.append(refuse)
        else:
            for value in check.values:
                code += [(_EQUAL, 0, 1, value), refuse]
    return [*code, (_RETURN, 0, 0, ALLOW) if rule.unless else refuse]


def packed(code: Iterable[Instruction]) -> bytes:
    """Return a program as the kernel takes it: an array of ``struct sock_filter``."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
