"""How workers leave as planned, and how others take their places."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.core.supervision_rules.base import SupervisionRules, anything, coins

__all__ = ["DepartureRules"]

# Why a worker goes that nobody has anything against, and one that somebody has.
PLANS = ("wear_out", "wear_out", "retire", "retire", "oversized")


class DepartureRules(SupervisionRules):
    """Planned exits, rolls and sizes."""

    @precondition(lambda self: self.shell.processes)
    @rule(data=anything, whim=st.integers(0, 1), what=st.sampled_from(PLANS))
    def a_worker_is_to_go(self, data: st.DataObject, whim: int, what: str) -> None:
        if whim == 0:
            slot = data.draw(st.sampled_from(sorted(self.shell.processes)))
            getattr(self.shell, what)(slot)

    @precondition(lambda self: self.shell.slots("idle", "busy", told=None))
    @rule(data=anything, begin=coins, then=st.sampled_from(["nothing", "end", "end"]))
    def a_worker_is_killed_by_order(
        self, data: st.DataObject, *, begin: bool, then: str
    ) -> None:
        slot = data.draw(st.sampled_from(self.shell.slots("idle", "busy", told=None)))
        if begin:
            self.shell.processes[slot].begin()
        self.shell.kill(slot)
        if then == "end":
            self.shell.die(slot, requeue=begin)

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @precondition(lambda self: not self.shell.rolling)
    @rule(whim=st.integers(0, 1))
    def roll(self, whim: int) -> None:
        if whim == 0:
            self.shell.roll()

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @precondition(lambda self: not self.shell.rolling)
    @precondition(lambda self: self.shell.slots("idle", "busy"))
    @rule(
        data=anything,
        since=st.sampled_from(["worn", "rolled in vain"]),
        then=st.sampled_from(["nothing", "ready", "ready", "die"]),
    )
    def roll_while_replacements_are_being_started(
        self, data: st.DataObject, since: str, then: str
    ) -> None:
        shell = self.shell
        if since == "worn":
            shell.wear_out(data.draw(st.sampled_from(shell.slots("idle", "busy"))))
        else:
            shell.roll()
            if shell.slots("starting"):
                shell.die(data.draw(st.sampled_from(shell.slots("starting"))))
        if shell.rolling or shell.broken:
            return
        early = shell.slots("starting")
        shell.roll()
        for slot in early:
            if slot in shell.slots("starting") and then == "ready":
                shell.ready(slot)
            elif slot in shell.slots("starting") and then == "die":
                shell.die(slot)

    @precondition(lambda self: self.shell.rolling)
    @rule(then=st.sampled_from(["ready", "ready", "ready", "die", "wait"]))
    def a_roll_goes_on(self, then: str) -> None:
        for slot in self.shell.slots("starting"):
            if then == "ready":
                self.shell.ready(slot)
            elif then == "die":
                self.shell.die(slot)
        for slot in self.shell.slots("starting", "idle", "busy", told=True):
            self.shell.die(slot)

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @rule(
        least=st.integers(1, 4),
        more=st.sampled_from([0, 0, 1, 4]),
        whim=st.integers(0, 2),
    )
    def resize(self, least: int, more: int, whim: int) -> None:
        if whim == 0:
            self.shell.resize(least, least + more)
