"""The table as text for a terminal and as Markdown for the documentation."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.torture.faults import FAULTS
from benchmarks.torture.peers import PEERS
from benchmarks.torture.results import CellResult
from benchmarks.torture.rules import RULES, Value, broken

MARKS = {"good": "✓", "bad": "✗", "not applicable": "-"}

HOW_TO_READ = """\
# The torture table

How asyncpool and other libraries (its *peers*) handle {faults} faults, as written by
`python -m benchmarks.torture --markdown docs/torture.md`. Each cell is one run in a process
of its own, in an event loop, with two workers. Peers have their default settings, plus
whatever they offer against the fault, such as `cancellable=True`. The rules are the same for
all and ask only for what a caller needs: the job that causes the fault may get any error, and
workers that lose their supervisor have three seconds to end.

- **ok**: every rule of the row held. Otherwise the cell shows the worst result.
- *culprit*: the job that causes the fault; *bystander*: a job that runs at the same time;
  *queued*: jobs behind the culprit; *later*: three more calls after the fault.
- **HANG**: no answer in time. A cell has {timeout:g} s, and each of its calls at least
  {share:g} s. (billiard waits 10 s before it reports a dead worker, so it counts as hanging.)
- **pool dead**: every later call fails.
- **another's error**: a caller unrelated to the fault got its error.
- A dash: the peer lacks the feature that the row tests.

Some faults are races, above all Ctrl-C, so figures vary between runs.
"""


def machine() -> dict[str, str]:
    """Name what the figures depend on."""
    return {
        "Python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
        "cores": str(os.cpu_count()),
    }


def versions(peers: Iterable[str]) -> dict[str, str]:
    return {peer: PEERS[peer].version for peer in peers if PEERS[peer].is_installed}


def as_text(cells: Sequence[CellResult]) -> str:
    """Give one block per fault with everything that was seen, then the sums."""
    lines = []
    for fault, row in by_fault(cells).items():
        lines += ["", f"{fault}: {FAULTS[fault].title}"]
        lines += [
            f"  {cell.peer:<20} {cell.verdict:<5} {details(cell)}" for cell in row
        ]
    return "\n".join([*lines, "", *sums(cells)])


def as_markdown(cells: Sequence[CellResult], timeout: float) -> str:
    peers = list(dict.fromkeys(cell.peer for cell in cells))
    head = [f"| fault | {' | '.join(peers)} |", "|---" * (len(peers) + 1) + "|"]
    rows = [
        f"| {FAULTS[fault].title} | {' | '.join(short(cell) for cell in row)} |"
        for fault, row in by_fault(cells).items()
    ]
    about = [f"{name} {value}" for name, value in machine().items()]
    about += [f"{name} {value}" for name, value in versions(peers).items()]
    return "\n".join(
        [
            HOW_TO_READ.format(
                faults=len(FAULTS), timeout=timeout, share=0.25 * timeout
            ),
            *head,
            *rows,
            "",
            f"Measured with {', '.join(about)}.",
            "",
            "## The rules",
            "",
            "Peers are listed where they break more than one rule.",
            *rules_and_breaches(cells),
            "",
        ]
    )


def as_matrix(cells: Sequence[CellResult]) -> str:
    """Give the table in its smallest form, of which the README shows some rows and the sums."""
    peers = list(dict.fromkeys(cell.peer for cell in cells))
    lines = [f"| | {' | '.join(peers)} |", "|---" + "|:-:" * len(peers) + "|"]
    for fault, row in by_fault(cells).items():
        marks = " | ".join(MARKS.get(cell.verdict, "") for cell in row)
        lines.append(f"| {FAULTS[fault].title} | {marks} |")
    faults = len(by_fault(cells))
    totals = " | ".join(good_of(cells, peer, faults) for peer in peers)
    return "\n".join([*lines, f"| of all {faults} faults | {totals} |", ""])


def good_of(cells: Sequence[CellResult], peer: str, faults: int) -> str:
    verdicts = [cell.verdict for cell in cells if cell.peer == peer]
    good, asked = verdicts.count("good"), faults - verdicts.count("not applicable")
    return f"{good}" if asked == faults else f"{good} of {asked}"


def rules_and_breaches(cells: Sequence[CellResult]) -> list[str]:
    """Give the rules of each fault, and the peers that break more than the table shows."""
    lines = []
    for fault, row in by_fault(cells).items():
        rules = "; ".join(f"{aspect}: {rule}" for aspect, rule in RULES[fault].items())
        lines += ["", f"### {FAULTS[fault].title}", "", f"Good is: {rules}."]
        seen: dict[str, list[str]] = {}
        for cell in row:
            wrong = broken(fault, cell.seen) if cell.verdict == "bad" else {}
            if len(wrong) > 1:
                seen.setdefault(listed(wrong), []).append(cell.peer)
        lines += [""] * bool(seen)
        lines += [f"- {', '.join(peers)}: {what}" for what, peers in seen.items()]
    return lines


def short(cell: CellResult) -> str:
    match cell.verdict:
        case "good":
            return "ok"
        case "bad":
            return f"**{cell.text}**"
        case "not applicable":
            return "-"
        case "not installed":
            return "not installed"


def details(cell: CellResult) -> str:
    return listed(cell.seen) or " ".join([cell.text, *cell.notes.values()])


def listed(seen: Mapping[str, Value]) -> str:
    return ", ".join(f"{aspect} {worded(value)}" for aspect, value in seen.items())


def worded(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:,g}".replace(",", " ")


def sums(cells: Sequence[CellResult]) -> list[str]:
    lines = []
    for peer in dict.fromkeys(cell.peer for cell in cells):
        verdicts = [cell.verdict for cell in cells if cell.peer == peer]
        counted = {v: verdicts.count(v) for v in dict.fromkeys(verdicts)}
        told = ", ".join(f"{count} {verdict}" for verdict, count in counted.items())
        lines.append(f"{peer:<22} {told}")
    return lines


def by_fault(cells: Sequence[CellResult]) -> Mapping[str, list[CellResult]]:
    rows: dict[str, list[CellResult]] = {}
    for cell in cells:
        rows.setdefault(cell.fault, []).append(cell)
    return rows
