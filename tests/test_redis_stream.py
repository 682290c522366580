"""The example that consumes a Redis stream: nothing is lost, nothing is run by two."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.gate import short_folder
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import pause, poll, redis_server

redis = pytest.importorskip("redis", reason="needs the package redis")

ROOT = Path(__file__).parents[1]
SEED = 20
LEASE = 3.0


@dataclass
class Run:
    """One run of one entry: who it was, and when it gave signs of life."""

    consumer: str
    pid: str
    marks: list[float] = field(default_factory=list)
    ended: bool = False


class Site:
    """A Redis, a stream, and consumers that come and go."""

    def __init__(self, folder: Path, socket: str) -> None:
        self.folder = folder
        self.socket = socket
        self.journal = folder / "journal"
        self.client: Any = redis.Redis(unix_socket_path=socket, decode_responses=True)
        self.living: dict[str, subprocess.Popen[str]] = {}
        self.killed: dict[str, float] = {}

    def add(self, **fields: object) -> str:
        entry: str = self.client.xadd("jobs", fields)
        return entry

    def start(self, *, lease: float = LEASE) -> str:
        name = f"c{len(self.living) + len(self.killed)}"
        with (self.folder / name).open("w") as out:
            self.living[name] = subprocess.Popen(
                [
                    *(sys.executable, "-W", "error"),
                    str(ROOT / "examples" / "redis_stream.py"),
                    *("--socket", self.socket, "--consumer", name),
                    *("--lease", f"{lease}", "--journal", str(self.journal)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
            )
        return name

    def kill(self, name: str) -> None:
        process = self.living.pop(name)
        process.kill()
        process.wait(PATIENCE)
        self.killed[name] = time.monotonic()

    def stop(self) -> None:
        """Have all end as a service manager would, and check that they do it well."""
        for process in self.living.values():
            process.send_signal(signal.SIGTERM)
        for name, process in self.living.items():
            assert process.wait(PATIENCE) == 0, self.said(name)

    def close(self) -> None:
        self.client.close()
        for process in self.living.values():
            process.kill()
            process.wait(PATIENCE)

    def said(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()

    def all_said(self, word: str) -> list[str]:
        lines = [line for n in (*self.living, *self.killed) for line in self.said(n)]
        return [line.split()[1] for line in lines if line.startswith(f"{word} ")]

    def pending(self) -> int:
        """Count the entries that are not acknowledged, those nobody has included."""
        (group,) = self.client.xinfo_groups("jobs") or [{"pending": 0, "lag": 1}]
        return int(group["pending"]) + int(group["lag"])

    def at_work(self) -> list[str]:
        """Return the consumers that live and have begun to work."""
        seen = {run.consumer for runs in self.runs().values() for run in runs}
        return sorted(seen & {*self.living})

    def runs(self) -> dict[str, list[Run]]:
        """Read the journal: the runs of each entry, in the order of their begins."""
        found: dict[str, list[Run]] = defaultdict(list)
        if not self.journal.exists():
            return found
        lines = [line.split() for line in self.journal.read_text().splitlines()]
        for moment, entry, consumer, pid, what in sorted(lines, key=by_time):
            runs = found[entry]
            if what == "begin":
                runs.append(Run(consumer, pid))
            (run,) = [r for r in runs if (r.consumer, r.pid) == (consumer, pid)][-1:]
            run.marks.append(float(moment))
            run.ended = what == "end"
        return found


def by_time(line: list[str]) -> float:
    return float(line[0])


@pytest.fixture
def site() -> Iterator[Site]:
    with short_folder() as folder, redis_server(folder) as socket:
        site = Site(folder, socket)
        try:
            yield site
        finally:
            site.close()


def test_killed_consumers_lose_no_entry_and_none_is_run_by_two(site: Site) -> None:
    dice = random.Random(SEED)
    # Some take longer than a lease, so they would not survive without their beats.
    rounds = [dice.randint(5, 40) for _ in range(80)] + [300, 300, 300]
    dice.shuffle(rounds)
    entries = [site.add(text=f"text {n}", rounds=r) for n, r in enumerate(rounds)]
    for _ in range(3):
        site.start()
    # It is to hit those that work, not those that are still being started.
    for _ in range(5):
        poll(
            lambda: (
                {*site.living}
                & {r.consumer for each in site.runs().values() for r in each}
            )
        )
        pause(dice.uniform(0.1, 0.5))
        working = sorted({r.consumer for each in site.runs().values() for r in each})
        site.kill(dice.choice([name for name in working if name in site.living]))
        site.start()
    poll(lambda: site.pending() == 0, limit=2 * PATIENCE)
    site.stop()

    runs = site.runs()
    assert set(runs) == set(entries)
    for entry in entries:
        assert any(run.ended for run in runs[entry]), f"{entry} was lost"
        for before, after in itertools.pairwise(runs[entry]):
            assert before.marks[-1] < after.marks[0], f"{entry} was run by two at once"
    assert not site.client.exists("jobs:dead")
    assert not site.all_said("lost")
    # What was to be shown did happen.
    claimed = site.all_said("claimed")
    assert claimed
    assert any(len({run.consumer for run in runs[entry]}) > 1 for entry in claimed)
    longest = max(r.marks[-1] - r.marks[0] for each in runs.values() for r in each)
    assert longest > LEASE
    for entry in entries:
        for run in runs[entry]:
            if run.consumer in site.killed:
                assert run.marks[-1] < site.killed[run.consumer] + 1


def test_a_consumer_that_is_stopped_leaves_no_job_that_runs_beside_the_next(
    site: Site,
) -> None:
    # Each takes longer than a lease and what is left of it: without a fence they overlap.
    entries = [site.add(text=f"text {n}", rounds=1000) for n in range(2)]
    frozen = site.start()
    poll(lambda: len(site.runs()) == len(entries))
    site.living[frozen].send_signal(signal.SIGSTOP)
    other = site.start()
    poll(lambda: {*site.all_said("claimed")} == {*entries}, limit=2 * PATIENCE)
    poll(lambda: all(site.runs()[entry][-1].consumer == other for entry in entries))
    site.living[frozen].send_signal(signal.SIGCONT)
    # It takes note that it has lost both, and works on.
    poll(lambda: {*site.said(frozen)} >= {f"lost {entry}" for entry in entries})
    poll(lambda: site.pending() == 0, limit=3 * PATIENCE)
    more = [site.add(text="more", rounds=5) for _ in range(40)]
    poll(lambda: {f"done {entry}" for entry in more} & {*site.said(frozen)})
    poll(lambda: site.pending() == 0)
    site.stop()
    for entry in entries:
        first, second = site.runs()[entry]
        assert (first.consumer, first.ended) == (frozen, False)
        assert (second.consumer, second.ended) == (other, True)
        assert first.marks[-1] < second.marks[0], f"{entry} was run by two at once"
        assert f"done {entry}" in site.said(other)


def test_a_consumer_that_is_stopped_runs_nothing_that_came_meanwhile(
    site: Site,
) -> None:
    first = site.add(text="text", rounds=1)
    frozen = site.start()
    poll(lambda: f"done {first}" in site.said(frozen))
    process = site.living[frozen]
    while True:
        # It asks for entries most of the time, for a tenth of a second at a time.
        process.send_signal(signal.SIGSTOP)
        entry = site.add(text="text", rounds=1)
        if site.client.xpending("jobs", "workers")["pending"]:
            break
        process.send_signal(signal.SIGCONT)
        poll(lambda: site.pending() == 0)
    other = site.start()
    poll(lambda: f"done {entry}" in site.said(other))
    process.send_signal(signal.SIGCONT)
    poll(lambda: f"late {entry}" in site.said(frozen))
    site.stop()
    [run] = site.runs()[entry]
    assert run.consumer == other


def test_a_lease_that_workers_may_outlive_is_refused() -> None:
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "examples" / "redis_stream.py")),
            *("--socket", "none", "--consumer", "one", "--lease", "1.9"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "--lease: must be at least 2 seconds" in done.stderr
