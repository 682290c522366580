"""What is an environment for workers, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from asyncpool._core.policies.worker_env import MAX_BYTES, WorkerEnv


def test_a_mapping_is_for_all_and_for_no_worker_alone() -> None:
    env = WorkerEnv({"A": "1", "PYTHONUTF8": "1"})
    assert env.common == (("A", "1"), ("PYTHONUTF8", "1"))
    assert not env.varies
    assert env.of(3, forked=True) == ()


def test_a_function_is_asked_for_each_worker() -> None:
    env = WorkerEnv(lambda slot: {"GPU": str(slot)})
    assert env.varies
    assert env.common == ()
    assert env.of(3, forked=True) == (("GPU", "3"),)
    assert env.of(0, forked=False) == (("GPU", "0"),)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (
            3,
            TypeError,
            (
                "worker_env must be a mapping of names to values, or a function of the slot that "
                "returns one, not 3"
            ),
        ),
        (
            {"A": 1},
            TypeError,
            "worker_env: the value of 'A' must be a str, not 1",
        ),
        ({1: "A"}, TypeError, "worker_env: a name must be a str, not 1"),
        ({"": "A"}, ValueError, "worker_env: '' cannot be the name of a variable"),
        ({"A=": "A"}, ValueError, "worker_env: 'A=' cannot be the name of a variable"),
        (
            {"A\0": "A"},
            ValueError,
            "worker_env: 'A\\x00' cannot be the name of a variable",
        ),
        (
            {"A": "\0"},
            ValueError,
            "worker_env: the value of 'A' has a null character",
        ),
    ],
)
def test_what_is_no_environment_is_refused(
    given: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        WorkerEnv(given)


def test_a_function_that_returns_none_is_refused() -> None:
    text = r"^worker_env\(2\) must be a mapping of names to values, not None$"
    with pytest.raises(TypeError, match=text):
        WorkerEnv(lambda _: None).of(2, forked=True)  # type: ignore[arg-type,return-value]


def test_the_variables_of_a_worker_are_bounded() -> None:
    env = WorkerEnv(lambda _: {"A": "x" * (MAX_BYTES - 1)})
    assert env.of(0, forked=True)
    with pytest.raises(ValueError, match=r"^worker_env\(0\) has 8193 characters"):
        WorkerEnv(lambda _: {"A": "x" * MAX_BYTES}).of(0, forked=True)


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "LD_PRELOAD", "DYLD_LIBRARY_PATH"])
def test_what_counts_only_at_the_start_is_for_fresh_interpreters(name: str) -> None:
    env = WorkerEnv(lambda _: {"A": "1", name: "0"})
    assert env.of(0, forked=False) == (("A", "1"), (name, "0"))
    with pytest.raises(ValueError, match=rf"^worker_env\(0\) sets {name}, which"):
        env.of(0, forked=True)
