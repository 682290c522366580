"""A socket on which descriptors arrive, each beside the bytes that it belongs to.

The kernel ends a read behind the bytes that a descriptor came with.  So the descriptors arrive
in the order of their frames.  If this process may open no more descriptors, the kernel drops
the descriptor, and says so in the result of the read.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque

# A frame may take two reads: the first leaves its descriptor here, and the second may bring the
# descriptor of the next frame.
_MOST_ARRIVED = 2

# Plain integers: to combine members of an enum takes more than 1 us of each read.
_CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_INT = array.array("i").itemsize
_ROOM = socket.CMSG_SPACE(_INT)
_CUT_OFF = int(socket.MSG_CTRUNC)


class DescriptorSocket(socket.socket):
    """A socket that keeps the descriptors which arrive with the bytes.

    Attributes:
        arrived: The descriptors that have arrived, the oldest first; ``None`` stands for one
            that the kernel has dropped.
        unwanted: Whether a descriptor has arrived that belongs to no frame.  From then on the
            socket closes each that arrives.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(fileno=sock.detach())
        self.arrived: deque[int | None] = deque()
        self.unwanted = False

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0) -> int:  # type: ignore[override]
        """Read into *buffer*, as a socket does, and keep the descriptors that arrive."""
        target = buffer[:nbytes] if nbytes else buffer
        size, ancillary, found, _ = self.recvmsg_into([target], _ROOM, flags | _CLOEXEC)
        if not ancillary and not found & _CUT_OFF:
            return size  # nearly always
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % _INT])
        if len(fds) > 1 or (fds and len(self.arrived) >= _MOST_ARRIVED):
            self.unwanted = True
        for fd in fds:
            if self.unwanted:
                os.close(fd)
            else:
                os.set_inheritable(fd, False)
                self.arrived.append(fd)
        if found & _CUT_OFF and not fds:
            self.arrived.append(None)
        return size

    def close(self) -> None:
        """Close the socket, and the descriptors that nobody has taken."""
        while self.arrived:
            fd = self.arrived.popleft()
            if fd is not None:
                os.close(fd)
        super().close()
