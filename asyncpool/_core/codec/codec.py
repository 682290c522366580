"""What a codec of the user's must have."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Codec(Protocol):
    """Turns values into bytes and back, for :class:`asyncpool.Pool` with *codec*.

    It is pickled once and sent to the workers, so its class must be importable there.

    Its methods may be called in any thread.  :meth:`decode` reads what a worker has sent, which
    may be anything, and must run no code that the bytes name.

    Attributes:
        name: What errors call it.
    """

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    def encode(self, value: Any, /) -> bytes:
        """Return *value* as bytes.

        Raises:
            Exception: If the value cannot be sent, or would not come back as it is.
        """
        ...

    def decode(self, data: bytes, type: Any, /) -> Any:  # noqa: A002 - it is one
        """Return the value that *data* stands for.

        Args:
            data: What :meth:`encode` has returned; or anything, if the worker is hostile.
            type: What the function says of this argument or of its result; ``Any`` if it says
                nothing.

        Raises:
            Exception: If there is no such value of that type.
        """
        ...
