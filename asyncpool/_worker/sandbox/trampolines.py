"""Code that ctypes has in a file, which a worker shares with whom it was forked from.

libffi 3.5, where it is built so, maps the code of callbacks from a file that it opens as ctypes
is imported: its own library, or a memfd if it cannot find that, as where a blank is in its path.
If the launcher has imported ctypes, all of its workers have that descriptor: what one of them
wrote into the memfd would run in the launcher and in the others.
"""

from __future__ import annotations

import fcntl
import os

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterable

TRAMPOLINES = "/memfd:libffi (deleted)"


def unshare_trampolines(
    descriptors: Iterable[tuple[int, str]],
) -> list[tuple[int, str]]:
    """Put a copy that nobody can write to in the place of each such descriptor.

    libffi goes on using the number of its descriptor.

    Args:
        descriptors: What is open, and where it leads to.

    Returns:
        What is open now, and where it leads to.
    """
    found: list[tuple[int, str]] = []
    for fd, where in descriptors:
        is_shared = where == TRAMPOLINES or os.path.basename(where).startswith(  # noqa: PTH119
            "libffi.so."
        )
        if is_shared:
            _replace(fd)
        found.append((fd, TRAMPOLINES if is_shared else where))
    return found


def _replace(fd: int) -> None:
    own = os.memfd_create("libffi", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(own, os.pread(fd, os.fstat(fd).st_size, 0))
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(own, fcntl.F_ADD_SEALS, seals)
    os.dup2(own, fd, inheritable=False)
    os.close(own)
