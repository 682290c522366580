"""The faults by name: what each one does, and the function that does it."""

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.torture.trial import Trial

Ending = Literal["report", "kill", "interrupt"]


@dataclass(frozen=True)
class Fault:
    """One row of the table.

    *ending* says who observes: the cell itself, which reports and is done, or the
    runner, which kills or interrupts the cell when that says that it is ready.
    """

    title: str
    inside: str
    ending: Ending = "report"

    def load(self) -> Callable[[Trial], Awaitable[None]]:
        module, _, name = self.inside.partition(":")
        loaded = importlib.import_module(f"{__name__}.{module}")
        found: Callable[[Trial], Awaitable[None]] = getattr(loaded, name)
        return found


FAULTS = {
    "kill-running": Fault(
        "worker killed by SIGKILL while it runs a job", "crashes:kill_running"
    ),
    "kill-idle": Fault("idle workers killed by SIGKILL", "crashes:kill_idle"),
    "kill-storm": Fault(
        "all workers killed while idle, 10 times, calls in between", "crashes:storm"
    ),
    "flood": Fault(
        "40 jobs that kill their worker before an honest one", "crashes:flood"
    ),
    "exit-0": Fault("3 jobs that call os._exit(0), 2 workers", "crashes:exit_zero"),
    "result-unpicklable": Fault(
        "result that cannot be pickled", "pickles:result_unpicklable"
    ),
    "argument-unpicklable": Fault(
        "argument that cannot be pickled", "pickles:argument_unpicklable"
    ),
    "error-unloadable": Fault(
        "exception that cannot be unpickled", "pickles:error_unloadable"
    ),
    "result-unloadable": Fault(
        "result that cannot be unpickled", "pickles:result_unloadable"
    ),
    "argument-unloadable": Fault(
        "argument that cannot be unpickled", "pickles:argument_unloadable"
    ),
    "keyboard-interrupt": Fault(
        "job raises KeyboardInterrupt", "pickles:keyboard_interrupt"
    ),
    "sys-exit": Fault("job calls sys.exit(3)", "pickles:sys_exit"),
    "cancel-python": Fault("cancel of a Python loop", "cancels:python_loop"),
    "cancel-c": Fault("cancel of one long C call", "cancels:c_call"),
    "initializer": Fault("initializer that raises", "starts:initializer"),
    "initializer-mended": Fault(
        "initializer that fails for a while, workers killed", "starts:mended"
    ),
    "orphans-idle": Fault(
        "supervisor killed by SIGKILL, workers idle", "endings:idle", "kill"
    ),
    "orphans-busy": Fault(
        "supervisor killed by SIGKILL, workers computing", "endings:busy", "kill"
    ),
    "ctrl-c": Fault("Ctrl-C with two long jobs", "endings:asleep", "interrupt"),
    "garbage": Fault(
        "worker that writes garbage into all its pipes and sockets", "hostile:garbage"
    ),
    "flood-of-bytes": Fault(
        "worker that floods all its pipes and sockets", "hostile:flood"
    ),
    "evil-result": Fault(
        "result that runs code where it is unpickled", "hostile:evil_result"
    ),
    "map": Fault("map over 200 000 items, one result taken", "maps:eagerness"),
}
