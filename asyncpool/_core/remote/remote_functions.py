"""The functions of a client, whose workers belong to another program.

What is in ``__main__`` travels by value, whatever the workers of this program can import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asyncpool._core.main.main_module import Abroad, script
from asyncpool._core.pickling.calls import pack_job
from asyncpool._core.pickling.functions import FunctionTable
from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._core.pickling.serializers import Serializer
from asyncpool.errors import JobNotPicklableError


def _pack_job(
    function: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    **how: Any,
) -> bytes | OutOfBandPickle:
    if script() is None:  # as in most programs, and the context takes 0.5 us
        try:
            return pack_job(function, args, kwargs, **how)
        except JobNotPicklableError:
            pass  # with the context, the error says what helps with workers of another program
    with Abroad():
        return pack_job(function, args, kwargs, **how)


class RemotePickle(Serializer):
    """Pickle, by value where workers of another program would not find a reference."""

    pack_job = staticmethod(_pack_job)


REMOTE_PICKLE = RemotePickle()


class RemoteFunctionTable(FunctionTable):
    """Those of a client that pickles; see :class:`FunctionTable`."""

    def _describe(self, function: Callable[..., Any]) -> tuple[bytes, Serializer]:
        with Abroad():
            payload, _ = super()._describe(function)
        return payload, REMOTE_PICKLE
