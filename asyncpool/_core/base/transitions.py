"""What every state machine of the core raises when its table has no such arrow."""

from __future__ import annotations


class IllegalTransitionError(AssertionError):
    """An event that cannot happen in this state: a bug in asyncpool."""
