# What the package uses of cloudpickle's inside.

from types import CodeType

_DYNAMIC_CLASS_TRACKER_BY_ID: dict[str, type]

def _extract_code_globals(co: CodeType) -> dict[str, None]: ...
def _get_or_create_tracker_id(class_def: type) -> str: ...
