"""``python -m tests.soak --seed N --minutes M``."""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from random import Random, SystemRandom

from tests.helpers.guards import mark_descendants, marked_processes
from tests.helpers.loops import warm_up
from tests.soak.rounds import run_round, watch
from tests.soak.tally import Tally

# Seconds that a round may take before the stacks are shown, and the soak ends.
_STUCK = 300.0


def main() -> int:
    """Soak, and say how it went."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, help="which choices; drawn if not given")
    parser.add_argument("--minutes", type=float, default=1.0, help="for how long")
    parser.add_argument("--round", type=int, help="only this one of the seed's rounds")
    args = parser.parse_args()
    seed = SystemRandom().randrange(1_000_000) if args.seed is None else args.seed
    say(f"soak: seed {seed}, {args.minutes:g} minutes")
    mark_descendants()
    warm_up()
    tally = Tally()
    watch(tally)
    done, ends_at = 0, time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        while time.monotonic() < ends_at and not (args.round and done):
            number = args.round or done + 1
            faulthandler.dump_traceback_later(_STUCK, exit=True)
            try:
                run_round(Random(f"{seed}/{number}"), number, tally, Path(folder))
            except Exception:  # noqa: BLE001 - it is told, whatever it is
                fail(seed, number, tally)
                return 1
            done += 1
    faulthandler.cancel_dump_traceback_later()
    say(tally.table())
    missing = tally.missing() if args.minutes >= 1 and not args.round else []
    for line in missing:
        say(f"soak: too little happened: {line}")
    say(f"soak: seed {seed}, {done} rounds, {'bad' if missing else 'all good'}")
    return 1 if missing else 0


def fail(seed: int, number: int, tally: Tally) -> None:
    """Tell what has failed, and how to see it again; leave no process behind."""
    say(tally.diary())
    say("\n".join(tally.setups))
    traceback.print_exc(file=sys.stdout)
    say(
        f"soak: failed in round {number} of seed {seed}; the same choices again, of that "
        f"round or of all:\n"
        f"    python -m tests.soak --seed {seed} --round {number}\n"
        f"    python -m tests.soak --seed {seed} --minutes {tally.minutes() + 1:.0f}"
    )
    for pid in marked_processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def say(text: str) -> None:
    """Print, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
