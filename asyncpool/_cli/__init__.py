"""The command line: ``asyncpool map``, ``call``, ``serve``, ``agent``, ``status``, ``doctor``.

Nothing is imported here: workers import :mod:`asyncpool._cli.targets`, and must start light.
"""

from __future__ import annotations

import os
import sys

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
        from asyncpool._cli.namesake import CURE, is_intact  # noqa: PLC0415 - see above

        if not is_intact():
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


def _tell(problem: str) -> None:
    print(f"asyncpool: {problem}", file=sys.stderr)  # noqa: T201 - there is no console yet
