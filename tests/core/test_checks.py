from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Sandbox
from asyncpool._core.sandbox.checks import (
    check_rlimits,
    is_within,
)
from asyncpool.sandbox import settings_of


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"read": "/data"}, TypeError, "read takes several: ('/data',)"),
        ({"write": [3]}, TypeError, "write takes paths, not 3"),
        ({"read": [""]}, TypeError, "read takes paths as text, not ''"),
        ({"workdir": 3}, TypeError, "workdir must be a path or None, not 3"),
        (
            {"network": 443},
            TypeError,
            "network takes True, False or numbers of TCP ports, not 443",
        ),
        (
            {"network": ["443"]},
            ValueError,
            "network names '443', and the kernel tells ports apart",
        ),
        (
            {"network": [True]},
            TypeError,
            "network takes numbers of TCP ports, not True",
        ),
        ({"network": [70000]}, ValueError, "network: there is no port 70000"),
        ({"env": ["A=1"]}, TypeError, "env must be a mapping of texts, not ['A=1']"),
        ({"env": {"A": 1}}, TypeError, "env takes texts, not 'A': 1"),
        ({"env": {"A=B": "1"}}, ValueError, "env: no environment can have 'A=B': '1'"),
        ({"processes": -1}, ValueError, "processes must be at least 0, not -1"),
        ({"processes": "3"}, TypeError, "processes must be an int or None, not '3'"),
        (
            {"processes": True},
            TypeError,
            "processes must be an int or None, not True",
        ),
        ({"memory": True}, TypeError, "memory must be an int or None, not True"),
        (
            {"cpu_seconds": True},
            TypeError,
            "cpu_seconds must be a number of seconds or None, not True",
        ),
        ({"cpus": True}, TypeError, "cpus must be a number or None, not True"),
        (
            {"user": False},
            TypeError,
            "user must be the name or the number of a user, or None, not False",
        ),
        ({"memory": 0}, ValueError, "memory must be > 0 and finite, or None, not 0"),
        ({"memory": 1000}, ValueError, "memory must be at least 8 MiB, not 1000 bytes"),
        (
            {"cpu_seconds": 0.0},
            ValueError,
            "cpu_seconds must be > 0 and finite, or None, not 0.0",
        ),
        (
            {"cpus": float("inf")},
            ValueError,
            "cpus must be > 0 and finite, or None, not inf",
        ),
        ({"strict": 1}, TypeError, "strict must be True or False, not 1"),
        (
            {"write": ["/"]},
            ValueError,
            "write names '/': that is no sandbox, name the folders",
        ),
        (
            {"read": ["/a/b"], "write": ["/a"]},
            ValueError,
            "'/a/b' is below '/a' of write, so a job could replace it by a link before",
        ),
        (
            {"write": ["/a", "/a/b/c"]},
            ValueError,
            "'/a/b/c' is below '/a' of write, so a job could replace it by a link before",
        ),
        (
            {"workdir": "/a", "read": ["/b"]},
            ValueError,
            "workdir='/a' is in no folder of read or write",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    settings: Mapping[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        Sandbox(**settings)
    assert str(caught.value).startswith(text)


def test_settings_are_kept_in_one_shape() -> None:
    sandbox = Sandbox(
        read=[Path("/a")], write=("/b",), network=[443, 80], env={"B": "1"}
    )
    assert sandbox.read == ("/a",)
    assert sandbox.network == (80, 443)
    assert dataclasses.replace(sandbox, memory=1 << 30).read == ("/a",)
    assert Sandbox(read=["here"]).read == (f"{Path.cwd()}/here",)
    assert Sandbox(network=()).network is False


def test_folders_beside_and_above_a_writable_one_may_be_read() -> None:
    sandbox = Sandbox(read=["/a", "/a/bc", "/a/b"], write=["/a/b"], workdir="/a/b/c")
    assert sandbox.read == ("/a", "/a/bc", "/a/b")


def test_the_presets_are_sandboxes_like_others() -> None:
    assert Sandbox.parser() == Sandbox(imports=False, memory=1 << 30)
    assert Sandbox.generated_code() == Sandbox(memory=1 << 30)
    assert Sandbox.generated_code("/w") == Sandbox(
        write=["/w"], workdir="/w", memory=1 << 30
    )


def test_a_limit_is_set_in_one_place() -> None:
    settings = settings_of(Sandbox(memory=1 << 30, processes=0), None)
    check_rlimits(settings, {"RLIMIT_NOFILE": 100, "RLIMIT_NPROC": 3, "RLIMIT_CPU": 1})
    with pytest.raises(
        ValueError, match="worker_limits sets RLIMIT_AS, and so does the"
    ):
        check_rlimits(settings, {"RLIMIT_AS": 1})


@pytest.mark.parametrize(
    ("path", "folder", "inside"),
    [
        ("/a", "/a", True),
        ("/a/b", "/a", True),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/a", "/", True),
    ],
)
def test_below_a_folder_is_inside_of_it(
    path: str,
    folder: str,
    inside: bool,  # noqa: FBT001 - a column
) -> None:
    assert is_within(path, [folder]) is inside
