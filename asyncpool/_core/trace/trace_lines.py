"""The lines of a trace file: one JSON object each, in the format of Chrome's trace viewer.

The file is a JSON array that may end anywhere: its format allows the last bracket to be
missing, so what a killed service leaves can be read.

The frequent lines are put together from texts, which is ten times faster than a JSON encoder;
the others are encoded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

# How a file begins.  A file that begins otherwise is no trace of a pool.
HEAD = '[\n{"name":"process_name","ph":"M","cat":"asyncpool",'

# The track of what is about the whole pool.
POOL_TRACK = 1

# How far apart the first lanes of two slots are: no worker has more lanes.
_STRIDE = 10_000

_MOST_TEXT = 8192  # characters of a text in a crash
_MOST_NAMES = 1000


def track_of(slot: int, lane: int) -> int:
    """Return the number of a track, its ``tid``."""
    return (slot + 1) * _STRIDE + lane


def text_of(value: str) -> str:
    """Return a text as JSON, without what is no Unicode."""
    if len(value) > _MOST_TEXT:
        value = f"... {value[-_MOST_TEXT:]}"  # the end says what happened
    return json.dumps(value.encode(errors="replace").decode())


class Names:
    """The names of functions as JSON, each encoded once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return a name as JSON."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= _MOST_NAMES:  # they are made up, without end
                self._known.clear()
            found = self._known[name] = text_of(name)
        return found


class LineMaker:
    """Makes the lines of one pool.

    Args:
        number: What the trace calls the pool: its ``pid``.
        pool: The number of the pool whose jobs these are; ``None`` if it is the same.
    """

    def __init__(self, number: int, pool: int | None = None) -> None:
        self._number = number
        self._where = f'"pid":{number},'
        # A job is known by one id, to its waiting and to its arrows: 64 bits, the pool first.
        # Its digits are decimal, and read as hexadecimal ones: that is quicker, and as unique.
        queue = f'"pid":{number if pool is None else pool},'
        pool = (number if pool is None else pool) & 0xFFFFFFF
        identity = f'"id":"0x{pool:07x}'
        self._bind = f'"bind_id":"0x{pool:07x}'
        common = f'"cat":"queue","name":"queued",{queue}"tid":{POOL_TRACK},'
        self._queued = f'{{"ph":"b",{common}{identity}'
        self._dequeued = f'{{"ph":"e",{common}{identity}'
        self._job = f'{{"ph":"X","cat":"job",{self._where}"tid":'
        self._begun = f'{{"ph":"B","cat":"job",{self._where}"tid":'
        self._ended = f'{{"ph":"E","cat":"job",{self._where}"tid":'

    def head(self, name: str, service: int, whole: str = "the pool") -> str:
        """Return how the file begins: what the pool is called, and the track of all of it."""
        args = f'"args":{{"name":{text_of(name)},"service":{service}}}'
        return f"{HEAD}{self._where}{args}}},\n{self.track_name(POOL_TRACK, whole)}"

    def process(self, name: str) -> str:
        """Return the line that gives a further process of the trace its name."""
        about = f'"args":{{"name":{text_of(name)}}}'
        return f'{{"name":"process_name","ph":"M","cat":"asyncpool",{self._where}{about}}},\n'

    def track_name(self, track: int, name: str) -> str:
        """Return the lines that give a track its name, and its place among the others."""
        where = f'"ph":"M",{self._where}"tid":{track},'
        return (
            f'{{"name":"thread_name",{where}"args":{{"name":{text_of(name)}}}}},\n'
            f'{{"name":"thread_sort_index",{where}"args":{{"sort_index":{track}}}}},\n'
        )

    def tail(self, at: int) -> str:
        """Return how the file ends if the pool ends."""
        return (
            f'{{"name":"end of the trace","ph":"i","s":"p","cat":"pool",{self._where}'
            f'"tid":{POOL_TRACK},"ts":{at}}}\n]\n'
        )

    def queued(self, job: int, at: int, function: str, *, again: bool) -> str:
        """Return the line with which a job begins to wait.

        Args:
            job: Its number.
            at: When.
            function: Its name, as JSON.
            again: Whether there was an attempt before, whose arrow leads here.
        """
        flow = '"flow_in":true,"flow_out":true' if again else '"flow_out":true'
        return (
            f'{self._queued}{job}",{self._bind}{job}",{flow},"ts":{at},'
            f'"args":{{"job":{job},"function":{function}}}}},\n'
        )

    def dequeued(self, job: int, at: int, why: str) -> str:
        """Return the line with which a job waits no more: *why* is its outcome, or "begun"."""
        return f'{self._dequeued}{job}","ts":{at},"args":{{"then":"{why}"}}}},\n'

    def job(
        self,
        job: int,
        track: int,
        function: str,
        *,
        begin: int,
        run: int,
        details: str,
        again: bool,
    ) -> str:
        """Return the lines of an attempt that is over, with the end of its waiting.

        Args:
            job: Its job's number.
            track: The track that it gets.
            function: What was called, as JSON.
            begin: When.
            run: How long it ran.
            details: What else there is to tell, as the inside of a JSON object.
            again: Whether another attempt follows, to which an arrow leads.
        """
        flow = '"flow_in":true,"flow_out":true' if again else '"flow_in":true'
        return (
            f'{self._dequeued}{job}","ts":{begin},"args":{{"then":"begun"}}}},\n'
            f'{self._job}{track},"ts":{begin},"dur":{run},"name":{function},'
            f'{self._bind}{job}",{flow},"args":{{"job":{job},{details}}}}},\n'
        )

    def begun(
        self, job: int, track: int, function: str, begin: int, details: str
    ) -> str:
        """Return the lines of an attempt that still runs, with the end of its waiting."""
        return (
            f"{self.dequeued(job, begin, 'begun')}"
            f'{self._begun}{track},"ts":{begin},"name":{function},{self._bind}{job}",'
            f'"flow_in":true,"flow_out":true,"args":{{"job":{job},{details}}}}},\n'
        )

    def ended(self, track: int, function: str, end: int, details: str) -> str:
        """Return the line of the end of an attempt that :meth:`begun` has told of."""
        return (
            f'{self._ended}{track},"ts":{end},"name":{function},'
            f'"args":{{{details}}}}},\n'
        )

    def instant(
        self, name: str, at: int, args: Mapping[str, object], track: int | None
    ) -> str:
        """Return the line of what takes no time; without a *track* it is the pool's."""
        line = {
            "ph": "i",
            "s": "p" if track is None else "t",
            "cat": "pool" if track is None else "worker",
            "name": name,
            "pid": self._number,
            "tid": POOL_TRACK if track is None else track,
            "ts": at,
            "args": {key: _plain(value) for key, value in args.items()},
        }
        return f"{json.dumps(line, separators=(',', ':'))},\n"

    def counter(self, name: str, at: int, unit: str, value: float) -> str:
        """Return the line of a figure that has changed."""
        return (
            f'{{"ph":"C","cat":"pool","name":"{name}",{self._where}"ts":{at},'
            f'"args":{{"{unit}":{value}}}}},\n'
        )


def _plain(value: object) -> object:
    """Return *value* as something that JSON has."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return json.loads(text_of(str(value)))
