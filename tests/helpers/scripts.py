"""Programs that use pools, run as a user would run them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.helpers.patience import PATIENCE

__all__ = ["DOCUMENTS", "ROOT", "finish", "promised", "run_script", "start_script"]

ROOT = Path(__file__).parents[2]

DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
)

# Python's own complaints at exit (a coroutine that was never awaited, a transport
# that was never closed) count as output too.
_FLAGS = ("-W", "error")
if sys.version_info >= (3, 15):
    # For the tracebacks of what was imported as __mp_main__, also by multiprocessing.
    _FLAGS += ("-W", "ignore:Module globals is missing a __spec__.loader")


def promised(program: str) -> str:
    """Return what a program says at its end that it prints."""
    _, _, output = program.partition("# Output:\n")
    return "".join(f"{line.removeprefix('# ')}\n" for line in output.splitlines())


def start_script(
    folder: Path,
    source: str,
    *args: str,
    from_stdin: bool = False,
    keep_stdin: bool = False,
    name: str = "script.py",
    command: tuple[str, ...] = (),
) -> subprocess.Popen[str]:
    """Start *source*, or what *command* names, in *folder* and in a session of its own."""
    text = textwrap.dedent(source)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    # pytest's own way to look at warnings must not be theirs.
    env.pop("PYTHONWARNINGS", None)
    command = ("-",) if from_stdin else command or (str(path),)
    piped = from_stdin or keep_stdin
    return subprocess.Popen(
        [sys.executable, *_FLAGS, *command, *args],
        stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=folder,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], stdin: str | None = None) -> tuple[str, str]:
    """Wait for the end of a program, and return what it wrote."""
    try:
        return process.communicate(stdin, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE)
        raise AssertionError(f"the script does not end: {out}\n{err}") from None


def run_script(folder: Path, source: str, *args: str) -> str:
    """Run *source* to its good end, and return what it printed."""
    process = start_script(folder, source, *args)
    out, err = finish(process)
    assert err == ""
    assert process.returncode == 0
    return out
