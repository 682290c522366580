# What the package uses of cloudpickle, which has no annotations of its own.

import pickle
from collections.abc import Callable
from types import FunctionType
from typing import Any

class Pickler(pickle.Pickler):
    def _dynamic_function_reduce(self, func: FunctionType) -> Any: ...

def dumps(
    obj: object,
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], object] | None = None,
) -> bytes: ...
