# What backends are made of.

from typing import Any

default_parallel_config: dict[str, Any]

class ParallelBackendBase:
    parallel: Any
    nesting_level: int | None
    backend_kwargs: dict[str, Any]
    supports_retrieve_callback: bool
    supports_inner_max_num_threads: bool
    def __init__(self, **options: Any) -> None: ...
    def _prepare_worker_env(self, n_jobs: int) -> dict[str, str]: ...

class AutoBatchingMixin:
    def reset_batch_stats(self) -> None: ...

class SequentialBackend(ParallelBackendBase): ...

class FallbackToBackend(Exception):  # noqa: N818 - theirs
    def __init__(self, backend: ParallelBackendBase) -> None: ...

def get_active_backend() -> tuple[Any, int]: ...
