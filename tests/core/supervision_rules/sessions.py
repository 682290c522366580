"""What those do who have a worker to themselves."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.core.pool_core import Finish
from tests.core.supervision_rules.base import SupervisionRules, anything

__all__ = ["SessionRules"]


class SessionRules(SupervisionRules):
    """What happens to sessions."""

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @rule(
        count=st.integers(1, 2),
        then=st.sampled_from(["nothing", "call", "lose", "lose", "end"]),
        much=st.integers(0, 3),
    )
    def want_a_worker(self, count: int, then: str, much: int) -> None:
        shell = self.shell
        for _ in range(count):
            shell.want()
        for session in [*shell.owners.values()] if then != "nothing" else ():
            shell.call(session)
            if then == "lose":
                shell.lose(session, much)
            elif then == "end" and not shell.broken:
                shell.call(session)  # it waits behind the first one
                shell.lose(session, 0)
            if shell.broken:
                break  # and refuses further calls

    @precondition(lambda self: self.shell.owners and not self.shell.finished)
    @rule(data=anything, what=st.sampled_from(["call", "call", "lose", "cancel"]))
    def a_session_goes_on(self, data: st.DataObject, what: str) -> None:
        shell = self.shell
        session = data.draw(st.sampled_from([*shell.owners.values()]))
        if what == "lose":
            shell.lose(session, data.draw(st.integers(0, 3)))
        elif what == "cancel" and shell.waiting_calls:
            shell.cancel(data.draw(st.sampled_from(shell.waiting_calls)))
        elif what == "call" and not shell.broken and not shell.time_is_over:
            for _ in range(2 if shell.closing in {None, Finish.ALL} else 0):
                shell.call(session)

    @precondition(lambda self: not self.shell.finished)
    @precondition(
        lambda self: self.shell.owners or self.shell.wanted or self.shell.departing
    )
    @rule(
        data=anything,
        what=st.sampled_from(["fresh", "as it is", "in vain"]),
    )
    def a_session_ends(self, data: st.DataObject, what: str) -> None:
        shell = self.shell
        shell.depart()
        if what == "in vain" and shell.wanted:
            shell.want_no_more()
        elif shell.owners:
            session = data.draw(st.sampled_from([*shell.owners.values()]))
            shell.end_session(session, fresh=what == "fresh")
