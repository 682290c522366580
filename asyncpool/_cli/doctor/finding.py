"""The result of one check of ``asyncpool doctor``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: What was checked.
        state: ``"ok"``, ``"note"`` if pools work without it, ``"bad"`` if they do not.
        detail: What was found, or what is lost.
    """

    name: str
    state: Literal["ok", "note", "bad"]
    detail: str

    def as_dict(self) -> dict[str, str]:
        """Return the finding as a JSON object."""
        return asdict(self)
