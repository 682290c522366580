"""Tell systemd, or another manager that has set ``NOTIFY_SOCKET``, the state (sd_notify)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sends states to the service manager; if there is none, it does nothing.

    It never waits, and drops what the manager does not take: that must not make a service fail.

    Args:
        environment: Where ``NOTIFY_SOCKET`` is looked up.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # "@" stands for the NUL of an abstract socket.  Other kinds ("vsock:") are not supported.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._sock: socket.socket | None = None
        if address.startswith(("/", "@")):
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sock.setblocking(False)

    @property
    def listens(self) -> bool:
        """Whether there is a manager to tell."""
        return self._sock is not None

    def ready(self, status: str) -> None:
        """Say that the service is ready, or ready again after a reload."""
        self._send("READY=1", _status(status))

    def reloading(self) -> None:
        """Say that the service loads its code anew; :meth:`ready` ends that."""
        # systemd compares the time stamp with its own, to tell this reload from an earlier one.
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}", _status("reloading"))

    def stopping(self) -> None:
        """Say that the service drains, and will end."""
        self._send("STOPPING=1", _status("draining"))

    def status(self, text: str) -> None:
        """Set the line that ``systemctl status`` shows."""
        self._send(_status(text))

    def alive(self) -> None:
        """Have the watchdog wait for another interval."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _send(self, *lines: str) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.sendto("\n".join(lines).encode(), self._address)


def watchdog_interval(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return the seconds between two signs of life for the watchdog; ``None`` without one.

    They are half of what the watchdog waits for (``WATCHDOG_USEC``), as systemd advises.
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
