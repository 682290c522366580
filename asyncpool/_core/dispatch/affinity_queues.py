"""The jobs that wait for one worker, since they have a key.

Whoever is in the pool to stay has a *place*, see ``affinity_slots.py``, and each place has a
line: a queue of its own, with the same rules as the common one.  A job waits in the line
of the place that its key belongs to, also when that changes: then it moves, and keeps its
age and its priority.  If nobody has a place at all, it waits for the first that is there.

To hand a place over costs nothing.  That there is one more or less is rare, so it may take
a microsecond for each key that somebody waits with, and four for each job that moves, or
stands in a line that others join.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from asyncpool._core.base.run_times import Profile
from asyncpool._core.dispatch.affinity import choose
from asyncpool._core.dispatch.queue import Entry, JobQueue


class Lines:
    """A line for each place in which jobs wait.

    Args:
        patience: As of each of them.

    Attributes:
        open: The lines that are not empty, by place; ``None`` is no place.
        seats: The slot of each place.
    """

    def __init__(self, patience: int) -> None:
        self.open: dict[int | None, JobQueue] = {}
        self.seats: Mapping[int, int] = {}
        self._patience = patience
        self._places: dict[int, int] = {}  # by slot
        # Of each job that waits; and of each key of theirs, its place and its jobs.
        self._keys: dict[int, int] = {}
        self._groups: dict[int, tuple[int | None, set[int]]] = {}

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self._keys)

    def slot_of(self, key: int | None) -> int | None:
        """Return the slot that a key belongs to, if any does."""
        place = self._place_of(key)
        return None if place is None else self.seats[place]

    def line_of(self, slot: int) -> JobQueue | None:
        """Return the line of those who wait for *slot*, unless it is empty."""
        return self.open.get(self._places[slot]) if slot in self._places else None

    def add(self, job: int, profile: Profile, priority: int) -> None:
        """Let *job* wait."""
        self._enter(job, profile.key).add(job, profile, priority)

    def give_back(self, jobs: dict[int, Profile]) -> None:
        """Let *jobs* wait before all others, in their order."""
        for job in reversed(jobs):
            profile = jobs[job]
            self._enter(job, profile.key).give_back({job: profile})

    def left(self, job: int) -> None:
        """Take note that *job* is no longer in its line."""
        key = self._keys.pop(job)
        place, group = self._groups[key]
        group.remove(job)
        if not group:
            del self._groups[key]
        if not self.open[place]:
            del self.open[place]

    def remove(self, job: int) -> bool:
        """Forget *job*, and tell whether it waited."""
        key = self._keys.get(job)
        if key is None:
            return False
        self.open[self._groups[key][0]].remove(job)
        self.left(job)
        return True

    def clear(self) -> list[int]:
        """Forget every job, and return them, line by line."""
        jobs = [job for line in self.open.values() for job in line.clear()]
        self.open.clear()
        self._keys.clear()
        self._groups.clear()
        return jobs

    def seat(self, seats: Mapping[int, int]) -> None:
        """Let these slots have these places, and each job wait where it belongs now."""
        there, self.seats = self.seats, seats
        self._places = {slot: place for place, slot in seats.items()}
        new = [place for place in seats if place not in there]
        moved: defaultdict[int | None, list[Entry]] = defaultdict(list)
        if new or len(seats) < len(there):
            for key, (place, group) in list(self._groups.items()):
                if place is None or place not in seats:
                    chosen = choose(key, seats)
                else:  # the first choice of all that were there
                    chosen = choose(key, (place, *new)) if new else place
                if chosen != place:
                    line = self.open[place]
                    moved[chosen] += [line.entry(job) for job in group]
        for place, entries in moved.items():
            for entry in entries:
                self.remove(entry.job)
            self._join(place, entries)

    def _join(self, place: int | None, entries: list[Entry]) -> None:
        """Let jobs of other lines wait here, as if they had always done."""
        present = self.open.pop(place, None)
        if present is not None:
            entries += present.entries()
        entries.sort()
        back = {entry.job: entry.profile for entry in entries if entry.priority is None}
        for entry in entries:
            if entry.priority is not None:
                self.add(entry.job, entry.profile, entry.priority)
        self.give_back(back)

    def _enter(self, job: int, key: int | None) -> JobQueue:
        """Take note that *job* comes to a line, and return that."""
        assert key is not None, "without a key, a job waits for anybody"
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = (self._place_of(key), set())
        self._keys[job] = key
        place, jobs = group
        jobs.add(job)
        line = self.open.get(place)
        if line is None:
            line = self.open[place] = JobQueue(self._patience)
        return line

    def _place_of(self, key: int | None) -> int | None:
        assert key is not None, "without a key, a job waits for anybody"
        group = self._groups.get(key)
        return choose(key, self.seats) if group is None else group[0]
