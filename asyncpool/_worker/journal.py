"""What loggers of a worker record, on its way to the pool's process.

A worker does not import ``logging``, which costs it 2 MB: it waits until a job does.
"""

from __future__ import annotations

import contextlib
import sys

TYPE_CHECKING = False  # see _core/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from logging import Handler
    from types import ModuleType
    from typing import Any

__all__ = ["Journal"]

_LOGGING = "logging"


class Journal:
    """Has the root logger send home what reaches it, as soon as there is one.

    As an entry of ``sys.meta_path`` it sees when ``logging`` is imported.

    Args:
        send: Sends the payload of a ``RECORD`` frame.
        whose: Tells the job that is running here and its attempt, if any, for code that
            does not know.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        whose: Callable[[], tuple[int, int] | None],
    ) -> None:
        self._send = send
        self._whose = whose
        self._levels: Sequence[tuple[str, int]] = ()
        self._disabled = 0
        self._handler: Handler | None = None

    def open(self, levels: Sequence[tuple[str, int]], disabled: int) -> None:
        """Begin, now or when there are loggers.

        Args:
            levels: The levels that they have at home, by name.
            disabled: The level up to which they are silent there.
        """
        self._levels, self._disabled = levels, disabled
        if _LOGGING in sys.modules:
            self._attach()
        else:
            sys.meta_path.insert(0, self)

    def leave(self) -> None:
        """Leave all loggers alone, in a process that is not the worker."""
        self._look_no_more()
        if self._handler is not None:
            vars(sys.modules[_LOGGING])["root"].removeHandler(self._handler)

    def find_spec(self, name: str, *details: Any) -> ModuleSpec | None:
        """Find ``logging`` as the others do, and be told when it is there."""
        if name != _LOGGING:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, *details)
                if spec is not None and spec.loader is not None:
                    spec.loader = _Watched(spec.loader, self._attach)  # type: ignore[assignment]
                    return spec
        return None

    def _attach(self) -> None:
        import logging  # noqa: PLC0415 - here it costs nothing

        from asyncpool._worker.handler import RecordHandler  # noqa: PLC0415

        for name, level in self._levels:
            logging.getLogger(name).setLevel(level)
        logging.disable(self._disabled)
        self._handler = RecordHandler(self._send, self._whose)
        logging.getLogger().addHandler(self._handler)
        self._look_no_more()

    def _look_no_more(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)


class _Watched:
    """A loader that tells when it has loaded its module, and is gone then."""

    def __init__(self, loader: Loader, loaded: Callable[[], None]) -> None:
        self._loader = loader
        self._loaded = loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._loaded()
