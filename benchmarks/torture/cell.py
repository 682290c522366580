"""One peer under one fault: ``python -m benchmarks.torture.cell PEER FAULT FOLDER``.

Light at import time, because peers that start new interpreters import their
parent's main module in every worker.
"""

import argparse
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture.cell")
    parser.add_argument("peer")
    parser.add_argument("fault")
    parser.add_argument("folder", type=Path, help="for markers and sockets")
    parser.add_argument("--timeout", type=float, default=8.0)
    options = parser.parse_args()
    run(options.peer, options.fault, options.folder, options.timeout)


def run(peer_name: str, fault_name: str, folder: Path, timeout: float) -> None:
    import anyio

    from benchmarks.torture.faults import FAULTS
    from benchmarks.torture.peers import PEERS
    from benchmarks.torture.trial import Trial

    peer = PEERS[peer_name].load()
    trial = Trial(peer, folder, timeout)
    fault = FAULTS[fault_name].load()
    if fault_name.startswith("initializer") and not peer.takes_initializer:
        trial.skip("no initializer")
        return

    def give_up(*_: object) -> None:
        if not trial.is_reported:
            trial.report()
            os._exit(0)

    # A shell's background job ignores SIGINT, and so would everything started by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A timer and no thread: peers that fork should find a process as a user's is.
    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        anyio.run(fault, trial, backend=peer.backend)
    except BaseException:
        # Every peer's Ctrl-C ends in an exception here; its workers' noise counts.
        if not trial.is_reported:
            raise
        sys.exit(130)


if __name__ == "__main__":
    main()
