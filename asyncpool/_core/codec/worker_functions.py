"""The functions that a worker may call in a pool that is data only: its half of the codec."""

from __future__ import annotations

import json
import pickle
from binascii import a2b_base64

from asyncpool._core.codec.formats import Format, PluggedFormat, format_of
from asyncpool._core.codec.function_names import FunctionNames, Plan

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# How many bytes say how long the description of a function is.
_SIZE = 4


class DataFunction:
    """A function that the pool has named.

    Attributes:
        function: The function.
        how: The format of its calls and outcomes.
        plan: What it takes and returns.
    """

    def __init__(
        self, function: Callable[..., Any], how: Format, qualname: str, module: str
    ) -> None:
        self.function = function
        self.how = how
        self.plan = Plan(function, how)
        # By which current_job() names it.
        self.__qualname__ = qualname
        self.__module__ = module


class WorkerFunctions:
    """The functions that a worker may call.

    Args:
        config: What the pool has said of them.
    """

    def __init__(self, config: bytes) -> None:
        self._names = FunctionNames(None)
        allowed = json.loads(config)["functions"]
        self._names.allowed = None if allowed is None else tuple(allowed)
        self._formats: dict[str, Format] = {}

    def find(self, description: bytes) -> DataFunction:
        """Return the function that the pool describes.

        Raises:
            Exception: If it cannot be imported, or may not be called.
        """
        fields = json.loads(description)
        name: str = fields["function"]
        function = self._names.find(name)
        module, _, path = name.partition(":")
        return DataFunction(function, self._format(fields["codec"]), path, module)

    def split(self, payload: bytes | memoryview) -> tuple[DataFunction, bytes]:
        """Return the function and the call of a message that has both."""
        data = bytes(payload)
        end = _SIZE + int.from_bytes(data[:_SIZE])
        return self.find(data[_SIZE:end]), data[end:]

    def _format(self, spec: str | list[str]) -> Format:
        if isinstance(spec, str):
            return format_of(spec)
        [text] = spec
        found = self._formats.get(text)
        if found is None:
            # It comes from the pool, which this process trusts.
            found = self._formats[text] = PluggedFormat(pickle.loads(a2b_base64(text)))
        return found
