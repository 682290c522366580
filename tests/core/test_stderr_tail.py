"""What is kept of a stderr: its end, and the beginning of a fatal error."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool._runtime.output.output import StderrTail

ERROR = "Fatal Python error: Segmentation fault"
CURRENT = "Current thread 0x00007f5ad4 [python] (most recent call first):"
C_STACK = "Current thread's C stack trace (most recent call first):"


def lines_of(*lines: str) -> tuple[str, ...]:
    tail = StderrTail()
    tail.extend(line.encode() for line in lines)
    return tail.lines


def numbered(count: int, name: str = "line") -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def left_out(count: int) -> list[str]:
    return [f"({count} lines are left out here)"] if count > 0 else []


def test_nothing_is_kept_of_nothing() -> None:
    assert lines_of() == ()


def test_the_last_lines_are_kept() -> None:
    assert lines_of(*numbered(100)) == tuple(numbered(100)[-40:])


def test_what_is_too_long_is_cut() -> None:
    assert lines_of("\N{GRINNING FACE}" * 501) == ("\N{GRINNING FACE}" * 500,)


def test_what_is_no_text_is_shown_as_well_as_can_be() -> None:
    tail = StderrTail()
    tail.extend([b"\xff!\r"])
    assert tail.lines == ("\N{REPLACEMENT CHARACTER}!",)


@pytest.mark.parametrize("more", [0, 20, 29])
def test_a_short_fatal_error_is_among_the_last_lines(more: int) -> None:
    found = lines_of(*numbered(50), ERROR, *numbered(more, "frame"))
    assert found == (*numbered(50), ERROR, *numbered(more, "frame"))[-40:]


@pytest.mark.parametrize("more", [30, 39, 40, 50, 55])
def test_a_longer_one_is_kept_whole_and_the_last_words_before_it(more: int) -> None:
    whole = (ERROR, *numbered(more, "frame"))
    assert lines_of(*numbered(50), *whole) == (*numbered(50)[-10:], *whole)


def test_of_one_that_is_longer_still_both_ends_are_kept() -> None:
    whole = ("before", ERROR, *numbered(99, "frame"))
    assert lines_of(*whole) == (
        *whole[:17],
        "(44 lines are left out here)",
        *whole[-40:],
    )


@pytest.mark.parametrize("threads", [0, 1, 15, 16, 60])
def test_the_stack_of_the_thread_that_crashed_is_kept_wherever_it_stands(
    threads: int,
) -> None:
    others = numbered(threads, "frame of another thread")
    stack = [CURRENT, *numbered(19, "frame of this thread")]
    found = lines_of("before", ERROR, *others, *stack, C_STACK, *numbered(80, "frame"))
    kept = ("before", ERROR, *others[:15], *left_out(threads - 15), *stack)
    assert found == (*kept, "(41 lines are left out here)", *numbered(80, "frame")[40:])


def test_only_the_first_thread_that_says_so_is_the_one_that_crashed() -> None:
    """A program that prints these words again and again does not fill the memory."""
    assert len(lines_of(ERROR, *[CURRENT] * 1000)) == 1 + 20 + 1 + 40


def test_what_is_said_of_a_thread_without_an_error_is_a_line_like_others() -> None:
    assert lines_of(CURRENT, *numbered(40)) == tuple(numbered(40))


def test_the_last_of_several_counts() -> None:
    whole = (ERROR, *numbered(50, "frame"))
    assert lines_of(ERROR, *numbered(70), *whole) == (*numbered(70)[-10:], *whole)


@given(
    st.lists(st.sampled_from([ERROR, CURRENT, "frame"]), max_size=150),
    st.integers(0, 150),
)
def test_it_does_not_matter_in_which_pieces_lines_come(
    lines: list[str], at: int
) -> None:
    numbers = [f"{line} {number}" for number, line in enumerate(lines)]
    tail = StderrTail()
    tail.extend(line.encode() for line in numbers[:at])
    tail.extend(line.encode() for line in numbers[at:])
    assert tail.lines == lines_of(*numbers)
    assert len(tail.lines) <= 10 + 16 + 1 + 20 + 1 + 40 + 1
    assert tail.lines[-40:] == tuple(numbers[-40:])
