# What the tests use.

from collections.abc import Awaitable, Callable
from typing import Any

def offload(function: Callable[..., Any]) -> Awaitable[Any]: ...
