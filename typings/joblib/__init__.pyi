# What the package, the tests and the examples use of joblib, which has no annotations of its own.

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from joblib.parallel import ParallelBackendBase

def dump(value: object, filename: object) -> object: ...
def hash(value: object) -> str: ...  # noqa: A001 - its name
def load(filename: str, mmap_mode: str | None = None) -> Any: ...

class Parallel:
    def __init__(
        self, n_jobs: int | None = None, backend: str | None = None, **options: Any
    ) -> None: ...
    def __call__(self, iterable: Iterable[Any]) -> Any: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class parallel_config:  # noqa: N801 - theirs
    def __init__(self, backend: str | None = None, **options: Any) -> None: ...
    def __enter__(self) -> object: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def cpu_count() -> int: ...
def delayed(function: Callable[..., object]) -> Callable[..., Any]: ...
def register_parallel_backend(
    name: str, factory: Callable[..., ParallelBackendBase]
) -> None: ...
