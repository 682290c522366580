"""What starts the other processes: any executable, another Python, a frozen program."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import ROOT, finish, start_script

STARTS = """
    import asyncio, multiprocessing, os, sys
    from asyncpool import Pool, RestartPolicy
    from asyncpool.errors import PoolBrokenError, UnsupportedPlatformError

    async def main(launcher, timeout):
        policy = RestartPolicy(max_failed_starts=1)
        try:
            async with Pool(
                1, launcher=launcher, restart_policy=policy, start_timeout=timeout
            ) as pool:
                print(await pool.submit(os.getenv, "WRAPPED"))
                print(await pool.submit(os.getenv, "ASYNCPOOL_STARTS"))
        except (PoolBrokenError, UnsupportedPlatformError) as error:
            print(str(error).partition("could not be started: ")[2] or error)

    if __name__ == "__main__":
        how, name, launcher, timeout = sys.argv[1:]
        exec(how)
        asyncio.run(main(launcher, float(timeout)))
"""
CHOSEN = "multiprocessing.set_executable(name)"
EMBEDDED = "sys.executable = name; sys.orig_argv.clear()"

# No "#!" names an interpreter whose path has a blank.
PYTHON = f'exec "{sys.executable}"'
OWN = f"{sys.implementation.cache_tag} {platform.python_version()}"
ELSEWHERE = f"{OWN} in '/opt/lib/python'"


def saying(what: str) -> str:
    write = "import os, sys; os.write(int(sys.argv[-1]), sys.argv[1].encode())"
    return f"""#!/bin/sh\n{PYTHON} -c '{write}' "{what}\n" "$@"\n"""


@pytest.fixture
def executable(tmp_path: Path) -> Path:
    path = tmp_path / "executable"
    path.touch(0o755)
    return path


def starts(
    how: str, name: object, launcher: str = "forkserver", timeout: str = "60"
) -> str:
    folder = Path(str(name)).parent
    out, _ = finish(start_script(folder, STARTS, how, str(name), launcher, timeout))
    return out


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
def test_the_executable_that_multiprocessing_has_is_used(
    executable: Path, launcher: str
) -> None:
    executable.write_text(f'#!/bin/sh\nexport WRAPPED=1\n{PYTHON} "$@"\n')
    assert starts(CHOSEN, executable, launcher) == "1\nNone\n"


@pytest.mark.parametrize(
    ("text", "timeout", "what"),
    [
        ("#!/bin/sh\nexit 7\n", "60", "it ended with exit status 7"),
        ("#!/bin/sh\nkill -SEGV $$\n", "60", "signal SIGSEGV ended it"),
        ("#!/bin/sh\nexec sleep 600\n", "1", "it does not answer within start_timeout"),
        (
            saying("cpython-38 3.8.1"),
            "60",
            f"it is cpython-38 3.8.1, and this process is {OWN} in '/",
        ),
        (
            saying(ELSEWHERE),
            "60",
            f"it is {ELSEWHERE}, and this process is {OWN} in '/",
        ),
        ("no program", "60", "it cannot be started: [Errno 8] Exec format error: "),
    ],
)
def test_what_is_no_such_python_is_refused_by_name(
    executable: Path, text: str, timeout: str, what: str
) -> None:
    executable.write_text(text)
    said = starts(CHOSEN, executable, timeout=timeout)
    assert "-P -c ... does not become the launcher" in said
    assert said.startswith(f"{executable} ")
    assert f": {what}" in said
    assert said.endswith(
        "; name a Python of this version by multiprocessing.set_executable()\n"
    )


def test_a_python_inside_another_program_is_found(executable: Path) -> None:
    executable.write_text("#!/bin/sh\nexit 7\n")
    assert starts(EMBEDDED, executable) == "None\nNone\n"


def test_an_interpreter_that_does_not_know_itself_is_refused(tmp_path: Path) -> None:
    said = starts('sys.executable = ""', tmp_path / "none")
    assert "sys.executable is empty" in said


def test_nothing_starts_itself_again(tmp_path: Path) -> None:
    """A module that each interpreter imports at its start begins a pool."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "depth = int(os.environ.get('DEPTH', '0'))\n"
        "os.environ['DEPTH'] = str(depth + 1)\n"
        "if depth > 2: os._exit(99)\n"
        "import asyncpool\n"
        "with asyncpool.ProcessPoolExecutor(1) as executor:\n"
        "    print(executor.submit(pow, 2, 5).result(), depth)\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", "print('end')"],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout == "32 0\nend\n", done.stderr
    assert "was itself started to have workers" in done.stderr
