"""The context variables of the code that submits a job, as bytes.

They travel by name, ``"package.module:name"``, and the worker looks them up where the
job runs.
"""

from __future__ import annotations

import pickle

from asyncpool._core.pickling.calls import describe
from asyncpool._core.pickling.out_of_band import dumps_call
from asyncpool.errors import JobNotPicklableError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def pack_variables(values: Sequence[tuple[str, object]]) -> bytes:
    """Return the bytes for variables with these values; empty if there are none.

    Raises:
        JobNotPicklableError: If a value cannot be pickled.  The error names the
            variable.
    """
    if not values:
        return b""
    try:
        return dumps_call(values)
    except Exception as error:
        name, culprit = _find_culprit(values, error)
        raise JobNotPicklableError(
            f"context variable {name} cannot be pickled: {describe(culprit)}",
            direction="arguments",
            name=name,
        ) from culprit


def unpack_variables(payload: bytes) -> Sequence[tuple[str, Any]]:
    """Return the names and values from *payload*, which must come from the pool.

    Raises:
        BaseException: Any that unpickling a value raises.
    """
    return pickle.loads(payload) if payload else ()


def _find_culprit(
    values: Sequence[tuple[str, object]], error: Exception
) -> tuple[str, Exception]:
    for name, value in values:
        try:
            dumps_call(value)
        except Exception as own:
            return name, own
    return values[0][0], error
