# What the package uses of cloudpickle, which has no annotations of its own.

import pickle
from collections.abc import Callable

class Pickler(pickle.Pickler): ...

def dumps(
    obj: object,
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], object] | None = None,
) -> bytes: ...
