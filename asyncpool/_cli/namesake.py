"""Another project's distribution is called ``asyncpool``; ours is ``asyncpool-supervised``.

Both packages are called ``asyncpool``, and pip installs both into one folder: the second
one overwrites ``asyncpool/__init__.py`` of the first, and whichever of them is uninstalled
takes that file along.
"""

from __future__ import annotations

import asyncpool

CURE = (
    "pip uninstall asyncpool; "
    "pip install --force-reinstall --no-deps asyncpool-supervised"
)


def is_intact() -> bool:
    """Tell whether the package that was imported as ``asyncpool`` is still this one."""
    return "Pool" in getattr(asyncpool, "__all__", ())


def find_namesake() -> str | None:
    """Return the version of the other distribution, or ``None`` if it is not installed."""
    from importlib.metadata import distributions  # noqa: PLC0415 - slow, for one command

    for other in distributions(name="asyncpool"):
        if "asyncpool/__init__.py" in map(str, other.files or ()):
            return other.version
    return None
