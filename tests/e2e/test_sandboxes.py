"""Pools where a sandbox refuses system calls that the kernel has."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tests.helpers import seccomp
from tests.helpers.command import run_code
from tests.helpers.scripts import run_script

pytestmark = pytest.mark.skipif(
    not seccomp.available(), reason="the numbers of system calls are not known here"
)

NUMBERS = {"EPERM": errno.EPERM, "ENOSYS": errno.ENOSYS}
FILE = "workers share plain files with their pool, and large objects go through sockets"
NUMBER = "workers are signalled by number"
ADVICE = (
    "allow it in the sandbox's filter of system calls ('asyncpool doctor' tells what "
    "else is missing)"
)


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (["memfd_create"], {"memfd_create": FILE}),
        (["pidfd_open"], {}),
        (["pidfd_send_signal"], {"pidfd_send_signal": NUMBER}),
        (["getpriority", "sched_getaffinity", "prlimit64"], {}),
        (
            sorted(seccomp.CALLS),
            {"memfd_create": FILE},
        ),
    ],
    ids=["memory", "pidfd", "signals", "questions", "all"],
)
def test_a_pool_does_without_what_is_refused_and_says_so_once(
    tmp_path: Path, calls: list[str], said: dict[str, str], number: int
) -> None:
    out = run_script(
        tmp_path,
        f"""
        import asyncio, json
        from tests.helpers import seccomp, tour
        seccomp.refuse({number}, *{calls})
        said = asyncio.run(tour.tour())
        print(json.dumps([text for text in said if "refused" in text]))
        """,
    )
    reason = "Operation not permitted" if number == 1 else "Function not implemented"
    assert json.loads(out) == [
        f"{call} is refused here ([Errno {number}] {reason}): {instead}; {ADVICE}"
        for call, instead in said.items()
    ]


@pytest.mark.parametrize(
    ("call", "name", "loss"),
    [
        (
            "memfd_create",
            "shared memory",
            "large arrays are sent through sockets, some ten times slower",
        ),
        ("pidfd_open", "pidfd", "workers are known and signalled by their numbers"),
        (
            "pidfd_send_signal",
            "pidfd",
            "workers are known and signalled by their numbers",
        ),
        (
            "prlimit64",
            "limits and niceness",
            "they are taken for the same, and all cores for usable",
        ),
    ],
)
def test_the_doctor_finds_what_is_refused_and_what_to_allow(
    tmp_path: Path, call: str, name: str, loss: str
) -> None:
    done = run_code(
        tmp_path,
        f"""
import sys
from tests.helpers import seccomp
seccomp.refuse(1, {call!r})
sys.argv = ["asyncpool", "doctor", "--json"]
from asyncpool._cli import main
main()
""",
    )
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    [finding] = [item for item in found["platform"] if item["state"] == "note"]
    assert finding["name"] == name
    assert finding["detail"] == (
        f"{call} is refused (Operation not permitted): allow it in the sandbox, such as "
        f"the container's seccomp profile; without it, {loss}"
    )
