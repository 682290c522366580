"""A process that has imported the command line, and forks for each command.

To import what a command needs takes longer than most commands of the tests, and they run
hundreds.  Everything else is as for ``python -m asyncpool``: a session, descriptors, a folder and
an environment of its own, and Python's way to end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["Prepared"]

_MOST = 1 << 17  # bytes of a request

# The child goes on behind the loop, at the end of which Python ends as it always does.
_CODE = f"""
import json, os, runpy, socket, sys
from asyncpool._cli.app import command

for name in command.commands:
    command.get_command(None, name)
door = socket.socket(fileno=int(sys.argv[1]))
while True:
    message, files, _, _ = socket.recv_fds(door, {_MOST}, 3)
    if not message:
        os._exit(0)
    if (pid := os.fork()) == 0:
        break
    for file in files:
        os.close(file)
    door.send(b"%d" % pid)
    door.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
door.close()
os.setsid()
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
asked = json.loads(message)
os.environ.clear()
os.environ.update(asked["env"])
os.chdir(asked["folder"])
sys.path[0] = asked["folder"]
sys.argv[1:] = asked["args"]
runpy.run_module("asyncpool", run_name="__main__", alter_sys=True)
"""


class Prepared:
    """The process.

    Args:
        env: Its environment.
    """

    def __init__(self, env: dict[str, str]) -> None:
        self._door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", _CODE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=env,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def run(
        self,
        folder: Path,
        args: tuple[str, ...],
        *,
        stdin: str,
        env: dict[str, str],
        patience: float,
    ) -> tuple[int, str, str]:
        """Run a command to its end; return its exit code, and what it has written.

        Args:
            folder: Where.
            args: Its arguments.
            stdin: What it reads.
            env: Its environment.
            patience: Seconds that it may take.

        Raises:
            TimeoutError: If it takes longer; it is killed.
        """
        (its_in, our_in), (our_out, its_out), (our_err, its_err) = (
            os.pipe() for _ in range(3)
        )
        asked = json.dumps({"folder": str(folder), "args": args, "env": env}).encode()
        assert len(asked) < _MOST
        theirs = (its_in, its_out, its_err)
        self._door.settimeout(patience)
        try:
            socket.send_fds(self._door, [asked], theirs)
        finally:
            for file in theirs:
                os.close(file)
        with ThreadPoolExecutor(3) as threads:
            threads.submit(_write, our_in, stdin)
            out, err = (threads.submit(_read, file) for file in (our_out, our_err))
            pid = int(self._door.recv(_MOST))
            try:
                code = int(self._door.recv(_MOST))
                return code, out.result(patience), err.result(patience)
            except TimeoutError:
                os.killpg(pid, signal.SIGKILL)
                text = f"{out.result()}\n{err.result()}"
                raise TimeoutError(text) from None

    def close(self) -> None:
        """End it."""
        self._door.close()
        self._process.wait()


def _write(file: int, text: str) -> None:
    with open(file, "w", encoding="utf-8") as pipe:
        pipe.write(text)


def _read(file: int) -> str:
    with open(file, encoding="utf-8") as pipe:
        return pipe.read()
