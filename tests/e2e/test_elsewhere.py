"""Pools on a system that has less than Linux, as far as that can be had here.

All that only Linux has is hidden from each Python that the program starts, by a module that
is imported before anything else, and sockets are as small as macOS makes them.  That is no
test on macOS, but it finds what is taken for granted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.scripts import run_script

HIDE = """
import builtins, errno, fcntl, mmap, os, signal, socket

for module, prefixes in (
    (os, ("memfd_", "MFD_", "pidfd_", "waitid", "sched_", "posix_fallocate", "eventfd")),
    (signal, ("pidfd_", "SIGRT")),
    (socket, ("MSG_CMSG_CLOEXEC", "SO_PEERCRED", "SO_PASSCRED")),
    (fcntl, ("F_ADD_SEALS", "F_SEAL_")),
    (mmap, ("MAP_POPULATE",)),
):
    for name in list(vars(module)):
        if name.startswith(prefixes):
            delattr(module, name)


def without_proc(function):
    def guarded(path, *args, **kwargs):
        if isinstance(path, (str, os.PathLike)) and str(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return function(path, *args, **kwargs)
    return guarded


for name in ("stat", "listdir", "open", "scandir"):
    setattr(os, name, without_proc(getattr(os, name)))
builtins.open = without_proc(builtins.open)
import io, pathlib
io.open = builtins.open
os.path.exists = lambda path, exists=os.path.exists: (
    not str(path).startswith("/proc") and exists(path)
)
pair = socket.socketpair


def small_pair(*args):
    found = pair(*args)
    for sock in found:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return found


socket.socketpair = small_pair
"""


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
def test_a_pool_works_without_what_only_linux_has(
    tmp_path: Path, launcher: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    out = run_script(
        tmp_path,
        f"""
        import os, sys
        if len(sys.argv) < 2:
            path = os.pathsep.join([os.getcwd(), os.environ["PYTHONPATH"]])
            os.environ["PYTHONPATH"] = path
            os.execv(sys.executable, [sys.executable, "-W", "error", __file__, "again"])
        import asyncio, signal, socket
        assert not hasattr(os, "memfd_create") and not hasattr(signal, "SIGRTMIN")
        # As much as 300 folders, which macOS does not take at once.
        sys.path += [f"/nowhere/{{'x' * 60}}/{{n}}" for n in range(600)]
        from asyncpool._wire import posix as _signals
        assert _signals.INTERRUPT_SIGNAL == signal.SIGUSR1
        from tests.helpers import tour
        said = asyncio.run(tour.tour(launcher={launcher!r}))
        print([text for text in said if "refused" in text])
        """,
    )
    assert out == "[]\n"
