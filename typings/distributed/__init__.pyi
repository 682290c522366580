# What the package and the tests use of distributed, whose own annotations take long to read.

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from types import TracebackType
from typing import Any, Self

class Worker:
    executors: dict[str, Executor]
    state: WorkerState

class WorkerState:
    nthreads: int

class WorkerPlugin: ...

class Future:
    def result(self, timeout: float | None = None) -> Any: ...

class _Context:
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def close(self) -> None: ...

class LocalCluster(_Context):
    def __init__(self, **options: Any) -> None: ...

class Client(_Context):
    def __init__(self, address: LocalCluster) -> None: ...
    def register_plugin(self, plugin: WorkerPlugin) -> Any: ...
    def unregister_worker_plugin(self, name: str) -> Any: ...
    def submit(
        self, function: Callable[..., Any], *args: Any, **options: Any
    ) -> Future: ...
    def map(
        self, function: Callable[..., Any], *iterables: Iterable[Any], **options: Any
    ) -> list[Future]: ...
    def gather(self, futures: list[Future]) -> list[Any]: ...
    def run(
        self, function: Callable[..., Any], *args: Any, **options: Any
    ) -> dict[str, Any]: ...
