"""Context variables, and jobs that look at them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from tests.helpers import jobs

request: ContextVar[Any] = ContextVar("request")
tenant: ContextVar[Any] = ContextVar("tenant", default="nobody")
user: ContextVar[Any] = ContextVar("user")

NO_VARIABLE = 7


def found() -> tuple[Any, Any]:
    """Return what is set here."""
    return request.get("unset"), tenant.get()


def found_and_changed(value: object) -> tuple[Any, Any]:
    before = found()
    request.set(value)
    tenant.set(value)
    return before


def found_in_every_attempt(gate: str) -> tuple[Any, Any]:
    jobs.wait_in_every_attempt(gate)
    return found()


def after(_baggage: object) -> tuple[Any, Any]:
    return found()


class Explosive:
    """Pickles, and does not unpickle."""

    def __reduce__(self) -> Any:
        return explode, ()


def explode() -> None:
    raise LookupError("there")
