"""Tell systemd, or whoever has set ``NOTIFY_SOCKET``, how this service is (sd_notify)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sends states to the service manager; without one it does nothing.

    Nobody waits for it, and what it cannot take is lost: a service is not to fail for that.

    Args:
        environment: Where ``NOTIFY_SOCKET`` is looked up.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # "@" stands for the NUL of an abstract socket.  Others ("vsock:") are not for us.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._sock: socket.socket | None = None
        if address.startswith(("/", "@")):
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sock.setblocking(False)

    @property
    def listens(self) -> bool:
        """Whether there is anybody to tell."""
        return self._sock is not None

    def ready(self, status: str) -> None:
        """The service is up, or up again after a reload."""
        self._send("READY=1", _status(status))

    def reloading(self) -> None:
        """The service loads its code anew; :meth:`ready` ends that."""
        # systemd compares the stamp with its own, to tell this reload from one before.
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}", _status("reloading"))

    def stopping(self) -> None:
        """The service drains, and will end."""
        self._send("STOPPING=1", _status("draining"))

    def status(self, text: str) -> None:
        """Have ``systemctl status`` show a line."""
        self._send(_status(text))

    def alive(self) -> None:
        """Have the watchdog wait for another interval."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Let go of the socket."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _send(self, *lines: str) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.sendto("\n".join(lines).encode(), self._address)


def watchdog_interval(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return how many seconds apart the watchdog wants signs of life, or ``None``.

    It is half of what the watchdog waits for (``WATCHDOG_USEC``), as systemd advises.
    """
    owner = environment.get("WATCHDOG_PID", "")
    if owner and owner != str(os.getpid()):
        return None
    try:
        microseconds = int(environment.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return microseconds / 2e6 if microseconds > 0 else None


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())}"
