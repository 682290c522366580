"""The command line: ``asyncpool map``, ``call``, ``serve``, ``agent``, ``status``, ``doctor``.

Nothing is imported here: workers import :mod:`asyncpool._cli.targets`, and must start light.
"""

from __future__ import annotations

import os
import sys

# Another project's distribution is called asyncpool; ours is asyncpool-supervised.  Both packages are
# called asyncpool, and pip installs both into one folder: the second one overwrites
# asyncpool/__init__.py of the first, and whichever of them is uninstalled takes that file along.
CURE = (
    "pip uninstall asyncpool; "
    "pip install --force-reinstall --no-deps asyncpool-supervised"
)

_NEEDED = frozenset(("click", "rich"))
_USAGE = 2
_INTERRUPTED = 130


def main() -> None:
    """Run the command line, or say how to install what it needs."""
    # A socket would get the number of a descriptor that is closed, and what is meant for a reader
    # of stderr would go there.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - stderr
        pass
    os.close(fd)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    try:
        import asyncpool  # noqa: PLC0415 - see above

        if "Pool" not in getattr(asyncpool, "__all__", ()):
            _tell(
                "another project's package 'asyncpool' was installed over this one, "
                f"which is 'asyncpool-supervised': {CURE}"
            )
            sys.exit(_USAGE)
        from asyncpool._cli.app import command  # noqa: PLC0415 - click may be missing

        command(prog_name="asyncpool")
    except ModuleNotFoundError as error:
        package, _, _ = (error.name or "").partition(".")
        if package not in _NEEDED:
            raise
        _tell(
            f"the command line needs {package}, which is not installed: "
            "pip install 'asyncpool-supervised[cli]'"
        )
        sys.exit(_USAGE)
    except KeyboardInterrupt:  # while all that is imported
        sys.exit(_INTERRUPTED)


def find_namesake() -> str | None:
    """Return the version of the other distribution, or ``None`` if it is not installed."""
    from importlib.metadata import distributions  # noqa: PLC0415 - slow, for one command

    for other in distributions(name="asyncpool"):
        if "asyncpool/__init__.py" in map(str, other.files or ()):
            return other.version
    return None


def _tell(problem: str) -> None:
    print(f"asyncpool: {problem}", file=sys.stderr)  # noqa: T201 - there is no console yet
