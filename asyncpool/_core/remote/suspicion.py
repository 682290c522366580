"""When a client suspects an agent, and when it gives the agent up."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Trust(IntEnum):
    """What the client thinks of an agent."""

    TRUSTED = 0
    SUSPECTED = 1
    LOST = 2


class Silence(NamedTuple):
    """For how long two processes have not heard each other when one of them was given up.

    Attributes:
        agent: For how many seconds the agent was not heard.
        own: For how many seconds before it was lost this process had said nothing, if that may be
            why; else 0.
        why: Why the agent was given up, if that is known: the error, or a text.
    """

    agent: float
    own: float
    why: Exception | str | None = None

    def __str__(self) -> str:
        if self.why is not None:
            return str(self.why).partition("\n")[0]  # Ray's go on for many lines
        if self.own:
            return f"it is gone, or has given this client up, which was silent for {self.own:.1f} s"
        return f"it is gone, or silent: it was heard last {self.agent:.1f} s before"


class SignsOfLife:
    """When an agent was heard last.

    A suspected agent gets no more jobs; nothing else happens to it.  A lost one does not come
    back: its session is over.

    Args:
        lease: For how many seconds the agent works for a client that it does not hear.
        patience: After how many seconds without a sign of life the agent is lost.
        now: The time.

    Raises:
        ValueError: If *patience* is shorter than *lease*: the agent could begin a job that the
            client has given to another one.
    """

    def __init__(self, *, lease: float, patience: float, now: float) -> None:
        if patience < lease:
            raise ValueError(
                f"node_timeout must be at least {lease:g} s, for which agents work for a "
                f"client that they do not hear, not {patience:g}"
            )
        self._suspect_after = lease / 2
        self._patience = patience
        self._deaf = self._last_late = 0.0
        self.heard_at = now

    def heard(self, now: float) -> None:
        """Record a sign of life."""
        self.heard_at = now
        self._deaf = 0.0

    def held_up(self, seconds: float) -> None:
        """Record that this process could hear nobody for so long: that is no silence."""
        self._deaf += seconds
        self._last_late = seconds

    def trust(self, now: float) -> Trust:
        """Return what to think of the agent *now*."""
        silent = now - self.heard_at - self._deaf
        if silent >= self._patience:
            return Trust.LOST
        return Trust.SUSPECTED if silent >= self._suspect_after else Trust.TRUSTED

    def silence(self, now: float, late: float) -> Silence:
        """Return how silent both were before the agent was lost.

        Args:
            now: The time.
            late: How late this process is now with what it was to say.
        """
        own = max(late, self._last_late)
        return Silence(now - self.heard_at, own if own >= self._suspect_after else 0.0)
