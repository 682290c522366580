"""Fuzz the decoders: ``python -m tests.fuzz [--seconds N]``, which ``make fuzz`` runs.

It uses atheris, which is guided by coverage, where that is installed, and Hypothesis where it
is not.  It begins with what earlier runs have kept in ``tests/fuzz/corpus``, and ends at the
first input that a decoder does not survive, which it writes into ``build/fuzz``.  With
``--keep`` it adds to the corpus what an earlier run has found beyond it.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz import CORPUS, targets

ROOT = Path(__file__).parents[2]
# Where new inputs go, which git does not see.
FOUND = ROOT / "build" / "fuzz"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="how long (60)")
    parser.add_argument(
        "--keep", action="store_true", help="add new inputs to the corpus"
    )
    given, inner = parser.parse_known_args()
    try:
        import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        print("atheris is not installed: Hypothesis takes its place")
        _with_hypothesis(given.seconds)
    else:
        _with_atheris(atheris, inner or _options(given.seconds, keep=given.keep))


def _options(seconds: int, *, keep: bool) -> list[str]:
    """Return what libFuzzer is told."""
    inputs = FOUND / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(targets.SEEDS):
        (inputs / f"seed-{number:02}").write_bytes(seed)
    options = ["-max_len=8192", "-rss_limit_mb=1024", "-timeout=5", "-verbosity=0"]
    if keep:
        return [*options, "-merge=1", str(CORPUS), str(inputs)]
    options += [f"-max_total_time={seconds}", "-print_final_stats=1"]
    return [*options, f"-artifact_prefix={FOUND}/", str(inputs), str(CORPUS)]


def _with_atheris(atheris: Any, options: list[str]) -> None:
    # Loaded anew, so that atheris sees which way an input takes through them.
    for name in [name for name in sys.modules if name.startswith("asyncpool")]:
        del sys.modules[name]
    with atheris.instrument_imports(include=["asyncpool._core"]):
        fresh = importlib.reload(targets)
    # To merge, it starts itself again, by this command and what it adds.
    command = f"{sys.executable} -m tests.fuzz"
    atheris.Setup([command, *options], fresh.run)
    atheris.Fuzz()


def _with_hypothesis(seconds: int) -> None:
    from hypothesis import HealthCheck, given, settings, strategies as st

    kept = [path.read_bytes() for path in sorted(CORPUS.iterdir())]
    changed = st.builds(
        _change, st.sampled_from(kept), st.binary(max_size=8), st.integers(0)
    )
    ends, runs = time.monotonic() + seconds, 0

    @settings(
        max_examples=2000,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(changed | st.binary())
    def go(data: bytes) -> None:
        nonlocal runs
        if time.monotonic() < ends:
            runs += 1
            targets.run(data)

    while time.monotonic() < ends:
        go()
    print(f"{runs} inputs, and every decoder has survived")


def _change(data: bytes, part: bytes, where: int) -> bytes:
    at = 1 + where % max(1, len(data))
    return data[:at] + part + data[at + where % 3 * len(part) :]


if __name__ == "__main__":
    main()
