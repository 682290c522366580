"""What is told of an item, or a call, that has failed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from asyncpool._cli.map.inputs import Item
from asyncpool._cli.targets import Form, FunctionRaisedError, shown
from asyncpool.errors import JobTimeoutError, WorkerCrashedError

# What each line in a file of failures begins with.
FAILURE = b'{"index": '


def describe(error: BaseException) -> dict[str, Any]:
    """Return what is known of a failure, as JSON knows it.

    ``kind`` is ``"raised"``, ``"timeout"``, a kind of crash, or ``"failed"``.
    """
    if isinstance(error, FunctionRaisedError):
        return {
            "kind": "raised",
            "type": error.type,
            "message": error.message,
            "traceback": error.traceback,
        }
    known: dict[str, Any] = {
        "kind": "failed",
        "type": type(error).__name__,
        "message": str(error),
    }
    if isinstance(error, JobTimeoutError):
        known |= {"kind": "timeout", "attempt": error.attempt, "stack": error.stack}
    elif isinstance(error, WorkerCrashedError):
        known |= {
            "kind": error.kind,
            "attempt": error.attempt,
            "stack": error.stack,
            "crashes": [dataclasses.asdict(crash) for crash in error.crashes],
        }
    return known


def failure_line(item: Item, form: Form, error: BaseException) -> str:
    """Return the line for the file of failures."""
    text = json.dumps(describe(error))
    return f'{FAILURE.decode()}{item.number}, "input": {shown(item.raw, form)}, "error": {text}}}'
