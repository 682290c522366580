"""Sandboxes that cannot be had: the refusal comes early, and names setting, path and cure."""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncpool import (
    Pool,
    PoolBrokenError,
    RestartPolicy,
    Sandbox,
    UnsupportedPlatformError,
    WorkerLimits,
)
from tests.helpers.inside import pretend_machine
from tests.helpers.sandboxes import needs_sandbox
from tests.helpers.scripts import run_script

ONCE = RestartPolicy(max_failed_starts=1)


@pytest.mark.parametrize(
    ("settings", "others", "text"),
    [
        (
            {"read": ["/no/such"]},
            {},
            "Sandbox(read=...): /no/such does not exist; make it before the pool, or leave it out",
        ),
        (
            {"write": ["/no/such"]},
            {},
            "Sandbox(write=...): /no/such does not exist; make it before the pool, or leave it out",
        ),
        (
            {"read": ["/etc/passwd"], "workdir": "/etc/passwd"},
            {},
            "Sandbox(workdir=...): /etc/passwd is no folder here",
        ),
        (
            {"write": ["/no/such"], "workdir": "/no/such"},
            {},
            "Sandbox(workdir=...): /no/such is no folder here",
        ),
        *(
            (
                {"user": user},
                {},
                (
                    f"Sandbox(user={user!r}): that is root, whose files would be the worker's "
                    "own: name a user who owns nothing, or leave it out"
                ),
            )
            for user in ("root", 0)
        ),
        (
            {"user": "nobody-here"},
            {},
            "Sandbox(user='nobody-here'): there is no such user",
        ),
        ({"user": -1}, {}, "Sandbox(user=-1): there is no such user"),
        (
            {"memory": 1 << 30},
            {"worker_limits": WorkerLimits(rlimits={"RLIMIT_AS": 1 << 30})},
            "worker_limits sets RLIMIT_AS, and so does the sandbox (memory): leave it to one of them",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_the_constructor(
    settings: Mapping[str, Any], others: Mapping[str, Any], text: str
) -> None:
    sandbox = Sandbox(**settings)
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        Pool(sandbox=sandbox, **others)


def test_links_are_followed_before_paths_are_compared(tmp_path: Path) -> None:
    (tmp_path / "out" / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "out" / "in")
    sandbox = Sandbox(read=[tmp_path / "link"], write=[tmp_path / "out"])
    text = f"'{tmp_path}/out/in' is below '{tmp_path}/out' of write"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        Pool(sandbox=sandbox)


def test_the_folder_of_private_folders_is_not_for_workers() -> None:
    folder = os.path.realpath(tempfile.gettempdir())
    text = f"Sandbox(write=...): {folder} holds the private folders of workers"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        Pool(sandbox=Sandbox(write=[folder]))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may become any user")
def test_only_root_can_have_workers_of_another_user() -> None:
    with pytest.raises(ValueError, match="only root can have workers of another user"):
        Pool(sandbox=Sandbox(user="nobody"))
    with pytest.raises(ValueError, match="that is the user of the service itself"):
        Pool(sandbox=Sandbox(user=os.geteuid()))


def test_a_sandbox_is_a_sandbox() -> None:
    with pytest.raises(TypeError, match="sandbox must be a Sandbox or None, not 3"):
        Pool(sandbox=3)  # type: ignore[arg-type]


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_machine(monkeypatch, "Darwin", "23.1.0", "arm64")
    with pytest.raises(UnsupportedPlatformError) as caught:
        Pool(sandbox=Sandbox())
    assert str(caught.value) == (
        "this sandbox cannot be enforced here: sandbox: a sandbox needs Linux, and this is "
        "Darwin; run the service in a Linux container or virtual machine; or accept that with "
        "strict=False"
    )


def look_around(path: str) -> tuple[str, str, str]:
    return Path(path).read_text(), str(Path.cwd()), os.environ["TMPDIR"]


@pytest.mark.asyncio
@pytest.mark.logs("sandbox-incomplete")
@pytest.mark.parametrize("system", ["Linux", "Darwin"])
async def test_a_sandbox_that_is_not_strict_does_what_it_can_and_says_the_rest(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    system: str,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("it")
    pretend_machine(monkeypatch, system, "5.4.0", os.uname().machine)
    sandbox = dataclasses.replace(Sandbox.parser(), strict=False, memory=None)
    async with Pool(
        1, preload=["tests.e2e.test_sandbox_refusals"], sandbox=sandbox, name="lax"
    ) as pool:
        text, here, folder = await pool.submit(look_around, str(secret))
        assert text == "it"
        assert here == folder != str(Path.cwd())
    [record] = [r for r in caplog.records if "strict=False" in r.getMessage()]
    assert record.getMessage().startswith(
        "pool lax: its sandbox (strict=False) does not keep everything in: "
    )
    needed = (
        "needs Linux" if system == "Darwin" else "Landlock 6, and this kernel is 5.4.0"
    )
    assert needed in record.getMessage()


async def refusal_of(sandbox: Sandbox, *preload: str, **options: Any) -> str:
    pool = Pool(1, preload=preload, sandbox=sandbox, restart_policy=ONCE, **options)
    with pytest.raises(PoolBrokenError) as caught:
        async with pool:
            pass
    return str(caught.value)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "leaves_something_behind.py"


@needs_sandbox
@pytest.mark.asyncio
@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_a_preload_that_keeps_a_file_open_is_named(
    module: Path, launcher: str
) -> None:
    module.write_text("file = open('/etc/passwd')")
    said = await refusal_of(Sandbox(), module.stem, launcher=launcher)
    assert "preload left descriptors open, which jobs would have: " in said
    assert "(/etc/passwd); close them after the import, or name another preload" in said


@needs_sandbox
@pytest.mark.asyncio
@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            "mmap.mmap(-1, 8192)",
            r"8192 bytes of /dev/zero \(deleted\) \(module leaves_something_behind\)",
        ),
        # Protected against mistakes, and not against mprotect().
        (
            "mmap.mmap(-1, 8192, prot=mmap.PROT_READ)",
            r"8192 bytes of /dev/zero \(deleted\)",
        ),
        (
            "multiprocessing.RawArray('b', 8000)",
            r"\d+ bytes of /dev/shm/pym-\S+ \(deleted\) \(module leaves_something_behind\)",
        ),
    ],
    ids=["mapping", "read only", "multiprocessing"],
)
async def test_memory_that_a_preload_has_all_workers_share_is_named(
    module: Path, launcher: str, made: str, told: str
) -> None:
    module.write_text(f"import mmap, multiprocessing.sharedctypes\nTABLE = {made}")
    said = await refusal_of(Sandbox(), module.stem, launcher=launcher)
    text = (
        "preload left memory that all workers share, by which a job could reach the others: "
        f"{told}; make it in the initializer, or name another preload"
    )
    assert re.search(text, said)


@needs_sandbox
@pytest.mark.asyncio
@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_a_preload_that_leaves_a_thread_is_named(
    module: Path, launcher: str
) -> None:
    module.write_text(
        "import threading\n"
        "threading.Thread(target=threading.Event().wait, name='left', daemon=True).start()"
    )
    said = await refusal_of(Sandbox(), module.stem, launcher=launcher)
    assert (
        "preload left threads behind, which would be outside of the sandbox: left (of "
        f"{module.stem}); start them in the initializer, or name another preload"
    ) in said


@needs_sandbox
def test_functions_of_a_script_work_and_are_told_nothing_of_its_arguments(
    tmp_path: Path,
) -> None:
    out = run_script(
        tmp_path,
        """
        import asyncio, sys
        from pathlib import Path
        from asyncpool import Pool, Sandbox

        def read(path):
            try:
                return Path(path).read_text()
            except PermissionError:
                return sys.argv[1:]

        async def main():
            sys.argv.append("--secret")
            async with Pool(1, sandbox=Sandbox.parser()) as pool:
                print(await pool.submit(read, "/etc/passwd"))
            async with Pool(1, launcher="spawn", sandbox=Sandbox.parser()) as pool:
                print(await pool.submit(read, "/etc/passwd"))

        if __name__ == "__main__":
            asyncio.run(main())
        """,
    )
    assert out == "[]\n[]\n"
