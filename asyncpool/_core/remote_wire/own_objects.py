"""Errors and figures of asyncpool's own, as agents send them; nothing else is unpickled.

An outcome of a user's function never comes this way: it travels as the pool's codec says.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any

from asyncpool.errors import ProtocolError

_MODULES = frozenset(
    f"asyncpool.{name}" for name in ("enums", "errors", "stats", "events", "profile")
)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if module in _MODULES and "." not in name:
            found = super().find_class(module, name)
            if getattr(found, "__module__", None) == module:
                return found
        raise ProtocolError(
            f"an agent sent {module}.{name}, which is none of asyncpool's"
        )


def pack_own(value: object) -> bytes:
    """Return an error, figures, or a dict or tuple of these as bytes."""
    buffer = BytesIO()
    pickler = pickle.Pickler(buffer, 5)
    # Not that of the process: tblib, which Dask imports, has other reducers for exceptions there.
    pickler.dispatch_table = {}
    pickler.dump(value)
    return buffer.getvalue()


def kind_of(value: object) -> str:
    """Return what errors call something that should not have come.

    Not its repr(): a tuple of two equal tuples of two equal tuples, and so on, is a few bytes here,
    and has one that takes for ever.
    """
    return f"an object of type {type(value).__name__}"


# What is not bounded is the hash of a key.  An agent may send a dict whose key is a tuple of two
# equal tuples of two equal tuples, and so on: its hash takes for ever.  That of a million tuples,
# one in the other, ends this process.  To look at tuples alone would not help, since our frozen
# dataclasses are hashed in the same way, and are shared in what agents rightly send.  So each
# opcode would have to be followed with the types on the stack.  Merely to list the opcodes by
# pickletools takes 1.3 times as long as to read the figures of a pool of 8 workers (0.45 and
# 0.34 ms), and to match them by a regular expression, which knows nothing of nesting, a tenth.
# An agent is a process of the same user, who may end this one anyway.


def load_own(data: bytes) -> Any:
    """Read what :func:`pack_own` has returned.

    Raises:
        ProtocolError: If it is something else.
    """
    try:
        return _Reader(BytesIO(data)).load()
    except ProtocolError:
        raise
    except Exception as error:
        raise ProtocolError(f"what an agent sent cannot be read: {error}") from error
