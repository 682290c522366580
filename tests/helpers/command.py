"""The command line, run as a user runs it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.patience import PATIENCE
from tests.helpers.prepared import Prepared

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a command."""

    code: int
    out: str
    err: str


def command_environment() -> dict[str, str]:
    """Return the environment of a user who has installed nothing special."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    for name in ("PYTHONWARNINGS", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        env.pop(name, None)
    return env


def write_module(folder: Path, source: str, name: str = "work") -> None:
    """Write a module for the command to find."""
    (folder / f"{name}.py").write_text(textwrap.dedent(source))


def numbers(folder: Path, count: int, name: str = "in.jsonl") -> None:
    """Write an input that counts from 0."""
    (folder / name).write_text("".join(f"{n}\n" for n in range(count)))


def lines(path: Path) -> list[Any]:
    """Return what a file of JSON lines holds."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def start_command(
    folder: Path, *args: str, stdout: int = subprocess.PIPE, within: str = ""
) -> subprocess.Popen[str]:
    """Start ``asyncpool`` in *folder*, in a session of its own.

    *within* is a line of shell that has ``"$@"`` for the command, say behind a limit.
    """
    return _start(folder, "-m", "asyncpool", *args, stdout=stdout, within=within)


def _start(
    folder: Path, *args: str, stdout: int = subprocess.PIPE, within: str = ""
) -> subprocess.Popen[str]:
    shell = ["sh", "-c", within, "sh"] if within else []
    return subprocess.Popen(
        [*shell, sys.executable, "-W", "error", *args],
        cwd=folder,
        env=command_environment(),
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish_command(process: subprocess.Popen[str], stdin: str = "") -> Done:
    """Wait for the end of a command."""
    try:
        out, err = process.communicate(stdin, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"the command does not end: {out}\n{err}") from None
    assert "Traceback" not in err.replace('"Traceback', ""), err
    return Done(process.returncode, out, err)


_prepared: list[Prepared] = []


@contextmanager
def prepared() -> Iterator[None]:
    """Have :func:`run_command` fork a process that has imported the command line."""
    _prepared.append(Prepared(command_environment()))
    try:
        yield
    finally:
        _prepared.pop().close()


def run_command(folder: Path, *args: str, stdin: str = "") -> Done:
    """Run ``asyncpool`` in *folder* to its end."""
    if not _prepared:
        return finish_command(start_command(folder, *args), stdin)
    code, out, err = _prepared[-1].run(
        folder, args, stdin=stdin, env=command_environment(), patience=PATIENCE
    )
    assert "Traceback" not in err.replace('"Traceback', ""), err
    return Done(code, out, err)


def run_without(folder: Path, package: str, *args: str) -> Done:
    """Run ``asyncpool`` in *folder* as if *package* were not installed."""
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from asyncpool._cli import main; main()"
    )
    return run_code(folder, code, *args)


def run_code(folder: Path, code: str, *args: str) -> Done:
    """Run *code*, which begins ``asyncpool`` in its own way, in *folder* to its end."""
    return finish_command(start_code(folder, code, *args))


def start_code(folder: Path, code: str, *args: str) -> subprocess.Popen[str]:
    """Start *code*, as :func:`run_code` does."""
    return _start(folder, "-c", code, *args)


def wait_until(path: Path, lines: int) -> None:
    """Wait until a file has so many lines."""
    give_up_at = time.monotonic() + PATIENCE
    while lines and not (path.exists() and path.read_bytes().count(b"\n") >= lines):
        assert time.monotonic() < give_up_at, f"{path} never had {lines} lines"
        time.sleep(0.005)


def in_terminal(folder: Path, *args: str, keys: dict[str, bytes] | None = None) -> Done:
    """Run ``asyncpool`` in a pseudo-terminal of 120 columns; its stderr goes there.

    Args:
        folder: Where.
        *args: Its arguments.
        keys: What is typed as soon as a text is on the screen.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _AT_TERMINAL, *args],
        cwd=folder,
        env=command_environment(),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    screen = b""
    waiting = dict(keys or {})
    give_up_at = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < give_up_at:
            ready, _, _ = select.select([ours], [], [], 0.1)
            if ready:
                try:
                    data = os.read(ours, 65536)
                except OSError:  # Linux says so when the other end is closed
                    break
                if not data:
                    break
                screen += data
            for text in [text for text in waiting if text.encode() in screen]:
                os.write(ours, waiting.pop(text))
        out = process.stdout.read() if process.stdout else b""
        process.wait(PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout:
            process.stdout.close()
        os.close(ours)
    return Done(process.returncode, out.decode(), screen.decode())


# The terminal becomes the session's own, so that Ctrl-C there is a signal.
_AT_TERMINAL = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from asyncpool._cli import main
main()
"""
