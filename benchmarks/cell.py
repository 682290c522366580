"""Make one measurement and print it as one line of JSON.

``python -m benchmarks.cell QUESTION PEER [--quick]``

Nothing is imported at the top: workers that are spawned import this module as
their main module, and should not pay for what only the measuring side needs.
"""

import sys


def main(question: str, row: str, *options: str) -> dict[str, object]:
    """Ask *question* of the peer in *row*; whatever it does is an answer."""
    from dataclasses import asdict

    from benchmarks.base import FULL, QUICK, Bench, Reading
    from benchmarks.peers import PEERS
    from benchmarks.questions import QUESTIONS

    name, _, loop = row.partition("+")
    try:
        scale = QUICK if "--quick" in options else FULL
        bench = Bench(PEERS[name], loop_factory(loop), scale)
    except ImportError as error:
        return asdict(Reading({}, status="missing", note=str(error)))
    try:
        reading = QUESTIONS[question].measure(bench)
    except Exception as error:
        note = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return asdict(Reading({}, status="failed", note=note))
    samples = [short(sample) for sample in reading.samples]
    curve = [(short(x), short(y)) for x, y in reading.curve]
    return {**asdict(reading), "samples": samples, "curve": curve}


def short(value: float) -> float:
    return float(f"{value:.4g}")


def loop_factory(name: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
    import asyncio

    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop


def end_children() -> None:
    """Kill what the peer leaves: it would keep whoever reads stdout from its end."""
    import psutil

    from benchmarks.runner import TRACKER

    for process in psutil.Process().children(recursive=True):
        try:
            if TRACKER not in " ".join(process.cmdline()):
                process.kill()
        except psutil.NoSuchProcess:
            continue


if __name__ == "__main__":
    import json
    import os

    print(json.dumps(main(*sys.argv[1:])), flush=True)
    end_children()
    # A peer that hangs at exit, or threads that it left, must not hold the line.
    os._exit(0)
