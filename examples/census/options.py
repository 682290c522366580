"""The command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_CHAOS = 0.9  # beyond it hardly anything but dying happens


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for; ``--help`` explains each."""

    workers: int | None
    chaos: float
    serial: bool
    limit: int | None
    seed: int
    plain: bool
    json: Path | None
    svg: Path | None


def parse(program: str, arguments: Sequence[str] | None) -> Options:
    """Parse *arguments*, or say what is wrong with them and exit with status 2."""
    parser = argparse.ArgumentParser(description=program, allow_abbrev=False)
    parser.add_argument(
        "--workers", type=_count, metavar="N", help="default: one on each CPU"
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--chaos",
        type=_rate,
        default=0.0,
        metavar="RATE",
        help="the share of attempts that kill their worker, such as 0.02; others are "
        "killed from outside; then compare with a serial run",
    )
    way.add_argument("--serial", action="store_true", help="use no pool at all")
    parser.add_argument(
        "--limit", type=_count, metavar="N", help="only N files, drawn at random"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="for all that is random"
    )
    parser.add_argument("--plain", action="store_true", help="lines instead of a bar")
    parser.add_argument(
        "--json", type=_target, metavar="FILE", help="write every finding to FILE"
    )
    parser.add_argument("--svg", type=_target, help=argparse.SUPPRESS)
    return Options(**vars(parser.parse_args(arguments)))


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return number


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= MOST_CHAOS:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and {MOST_CHAOS}")
    return rate


def _target(text: str) -> Path:
    # Better now than after the work is done.
    target = Path(text)
    if not text or target.is_dir() or not target.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return target
