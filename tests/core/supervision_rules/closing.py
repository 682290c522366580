"""Time goes by, and the pool is closed."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.core.pool_core import Finish
from tests.core.supervision_rules.base import SupervisionRules

__all__ = ["ClosingRules"]


class ClosingRules(SupervisionRules):
    """What ends the story of a pool."""

    @precondition(lambda self: self.shell.core.next_deadline() is not None)
    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 3.0, 6.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.shell.advance(seconds)

    @rule(seconds=st.sampled_from([0.0, 70.0, 3_600.0]), whim=st.integers(0, 3))
    def the_machine_was_asleep(self, seconds: float, whim: int) -> None:
        if whim == 0:
            self.shell.advance(seconds)

    # Closing ends the story, so it comes late or hardly ever.

    @precondition(lambda self: self.shell.closing is None)
    @rule(
        whim=st.integers(0, 11),
        finish=st.sampled_from(Finish),
        timeout=st.sampled_from([0.0, 1.0, 30.0, math.inf]),
    )
    def close(self, whim: int, finish: Finish, timeout: float) -> None:
        if whim == 0:
            self.shell.close(finish, timeout)

    @precondition(lambda self: self.shell.closing is None and self.shell.preparing)
    @rule(whim=st.integers(0, 5), timeout=st.sampled_from([1.0, 30.0]))
    def close_before_all_are_pickled(self, whim: int, timeout: float) -> None:
        if whim == 0:
            self.shell.close(Finish.ALL, timeout)

    @precondition(lambda self: self.shell.closing is not None)
    @precondition(lambda self: not self.shell.finished)
    @rule(
        finish=st.sampled_from(Finish),
        timeout=st.sampled_from([0.0, 1.0, 9.0, 60.0, math.inf]),
    )
    def close_again(self, finish: Finish, timeout: float) -> None:
        self.shell.close(finish, timeout)
