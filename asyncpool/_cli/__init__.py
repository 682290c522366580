"""The command line: ``asyncpool map``, ``call``, ``serve``, ``agent``, ``status``, ``doctor``.

Nothing is imported here: workers import :mod:`asyncpool._cli.targets`, and must start light.
"""

from __future__ import annotations

import sys

_NEEDED = frozenset(("click", "rich"))
_USAGE = 2
_INTERRUPTED = 130


def main() -> None:
    """Run the command line, or say how to install what it needs."""
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
