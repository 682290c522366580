"""Private folders of workers, which are removed with whatever their jobs have left there."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from threading import Lock

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateFolders:
    """Makes folders that only one worker can enter, and removes them.

    Args:
        user: The numbers of the user and the group that workers are, if not this process's.
        apart: Whether they have real users of their own, but the group of this process.
    """

    def __init__(self, user: tuple[int, int] | None, *, apart: bool = False) -> None:
        self._user = user
        self._apart = apart
        self._base: str | None = None
        self._removing = Lock()  # two threads would take each other's folders away

    def make(self, name: str) -> str:
        """Return a new folder.

        Raises:
            OSError: If it cannot be made.
        """
        if self._base is None:
            # Workers of another user pass through here; nobody can list it.
            self._base = tempfile.mkdtemp(prefix="asyncpool-")
            if self._user is not None or self._apart:
                Path(self._base).chmod(0o711)
        folder = f"{self._base}/{name}"
        Path(folder).mkdir(0o700)
        if self._apart:
            Path(folder).chmod(0o770)
        if self._user is not None:
            os.chown(folder, *self._user)
        return folder

    def remove_empty(self, name: str) -> bool:
        """Remove a folder if nothing is in it; return whether it is gone."""
        try:
            Path(f"{self._base}/{name}").rmdir()
        except OSError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove a folder; what cannot be removed now goes with the rest."""
        with self._removing, contextlib.suppress(OSError):
            if self._base is not None:
                remove_tree(self._base, name)

    def close(self) -> None:
        """Remove all that is left."""
        with self._removing, contextlib.suppress(OSError):
            base, self._base = self._base, None
            if base is not None:
                for path in Path(base).iterdir():
                    remove_tree(base, path.name)
                Path(base).rmdir()


def remove_tree(parent: str, name: str) -> None:
    """Remove the folder *name* of *parent*, whatever hostile code has put there.

    :func:`shutil.rmtree` calls itself for each level (before Python 3.13), and a job may make more
    levels than a stack has room for.  Here each folder moves up beside the first one before it is
    emptied, so no path grows long.

    Raises:
        OSError: If something cannot be removed.
    """
    top = os.open(parent, _FOLDER)
    try:
        waiting, count = [name], 0
        while waiting:
            folder = waiting.pop()
            fd = os.open(folder, _FOLDER, dir_fd=top)
            try:
                for inner in _empty(fd):
                    count += 1
                    moved = f"{name}.{count}"
                    os.rename(inner, moved, src_dir_fd=fd, dst_dir_fd=top)
                    waiting.append(moved)
            finally:
                os.close(fd)
            os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)


def _empty(fd: int) -> list[str]:
    """Remove from a folder what is no folder; return the names of the folders inside."""
    inner: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=fd)
                continue
            inner.append(entry.name)
            if entry.stat(follow_symlinks=False).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                _open_up(fd, entry.name)
    return inner


def _open_up(fd: int, name: str) -> None:
    """Let this process into a folder that its maker has closed; never through a link."""
    inner = os.open(name, _FOLDER | os.O_PATH, dir_fd=fd)
    try:
        Path(f"/proc/self/fd/{inner}").chmod(stat.S_IRWXU)
    finally:
        os.close(inner)
