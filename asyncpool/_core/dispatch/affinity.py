"""Which place a key belongs to.

Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit
rates", 1998), also called highest random weight: each pair of a key and a place has a
weight that looks random, and a key belongs to the place with which its weight is the
highest.  So places have equal shares of all keys; one that comes takes its share from all
others alike, and one that goes leaves its keys to the others, each to its next choice.
Nobody else's keys move, and nothing has to be remembered of any key.

Rejected: the hash modulo the number of places, which moves nearly all keys when that
changes; and a ring of hashes, which needs a hundred points for each place until the
shares are nearly equal, and a table of them.  It would find a place among hundreds
sooner, but a weight costs 0.5 us, and a pool has some dozens of places at the most.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_MASK = (1 << 64) - 1

# The constants of SplitMix64 (Steele, Lea and Flood, 2014), and its last steps below.
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_FIRST = 0xBF58_476D_1CE4_E5B9
_SECOND = 0x94D0_49BB_1331_11EB


def hash_of(key: Any) -> int:
    """Return what is left of a key, of which nothing else matters.

    Equal keys have equal hashes in this process.  That of a text is another one in the
    next process; but so are the workers.

    Raises:
        TypeError: If it has no hash, or one by which only the very same object is found
            again: most likely there will be another one for the next job.
    """
    try:
        number = hash(key)
    except TypeError as error:
        raise TypeError(
            f"key must be hashable, such as a str, an int or a tuple of these, "
            f"not {key!r}"
        ) from error
    if getattr(type(key), "__hash__", None) is object.__hash__:
        raise TypeError(
            "key must be a value, such as a str, an int or a tuple of these: "
            f"{type(key).__qualname__} has a hash by identity only"
        )
    return number


def weight(key: int, place: int) -> int:
    """Return how much *key*, the hash of one, is drawn to *place*."""
    x = (key & _MASK) ^ ((place + 1) * _GOLDEN & _MASK)
    x = (x ^ (x >> 30)) * _FIRST & _MASK
    x = (x ^ (x >> 27)) * _SECOND & _MASK
    return x ^ (x >> 31)


def choose(key: int, places: Collection[int]) -> int | None:
    """Return the place that *key* belongs to; ``None`` if there is none at all."""
    return max(places, key=lambda place: weight(key, place), default=None)
