"""Decide which bucket a key belongs to, by rendezvous hashing.

Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit
rates", 1998) is also called highest random weight.
Each pair of a key and a bucket has a weight that looks random.  A key belongs to the
bucket with which its weight is the highest.  So buckets have equal shares of all keys.
A new bucket takes its share from all others alike.  A bucket that goes leaves its keys
to the others, each key to its next choice.  No other keys move, and nothing has to be
remembered of any key.

Rejected: the hash modulo the number of buckets, which moves nearly all keys when that
number changes.  Also rejected: a ring of hashes, which needs a table with a hundred
points for each bucket until the shares are nearly equal.  It would find one of hundreds
of buckets sooner.  But a weight costs 0.5 us, and a pool has some dozens of buckets at
the most.
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
    """Return the hash of *key*, which is all that the pool keeps of it.

    Equal keys have equal hashes in this process.  A text has another hash in the next
    process, but that one has other workers as well.

    Raises:
        TypeError: If *key* has no hash, or is equal only to itself, or not even that.
            Then only the very same object is found again, and the next job most likely
            brings another object.  The parts of a tuple are not looked at: they may be
            objects of which there is only one, such as None or a class.
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
    if key != key:  # noqa: PLR0124 - NaN
        raise TypeError(f"key must be a value that is equal to itself, not {key!r}")
    return number


def weight(key: int, bucket: int) -> int:
    """Return the weight of a key's hash and a bucket; the key belongs to the highest."""
    x = (key & _MASK) ^ ((bucket + 1) * _GOLDEN & _MASK)
    x = (x ^ (x >> 30)) * _FIRST & _MASK
    x = (x ^ (x >> 27)) * _SECOND & _MASK
    return x ^ (x >> 31)


def choose(key: int, buckets: Collection[int]) -> int | None:
    """Return the bucket that *key* belongs to; ``None`` if there is no bucket."""
    return max(buckets, key=lambda bucket: weight(key, bucket), default=None)
