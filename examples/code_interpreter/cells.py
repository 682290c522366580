"""What runs in the workers: the cells of one user's session, one after the other.

A cell is code that nobody has read.  It can do what it likes to this process, so nothing here
keeps anything from it.  The sandbox of the pool does that, and the service reads what this process
sends as data.
"""

import ast
import contextlib
import io
import sys
import traceback
from pathlib import Path
from typing import Any

from asyncpool.errors import JobCancelled

# Characters of output, rows of a table, pictures of a cell, and bytes of a file.
MAX_OUTPUT = 64 * 1024
MAX_ROWS = 100
MAX_PICTURES = 10
MAX_FILE = 4 << 20

_names: dict[str, Any] = {"__name__": "__main__"}


class Output(io.TextIOBase):
    """Keeps the first part of what a cell prints, and forgets the rest."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._left = MAX_OUTPUT

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Keep *text*, or as much of it as there is room for."""
        kept = text[: self._left]
        if kept:
            self._parts.append(kept)
            self._left -= len(kept)
        return len(text)

    def text(self) -> str:
        """Return what was kept, and whether something is missing."""
        end = "" if self._left else "\n... more output than a cell may have ..."
        return "".join(self._parts) + end


def run_cell(source: str) -> dict[str, Any]:
    """Run *source*, which finds the names that earlier cells have left.

    Returns:
        ``output``, what it has printed; ``error``, its traceback, or ``None``; ``value``, its last
        expression as text; ``table``, that as columns and rows; and ``pictures``, as PNG.
    """
    output, value = Output(), None
    found: dict[str, Any] = {"error": None, "value": None, "table": None}
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            value = _run(source)
            if value is not None:
                found["value"], found["table"] = _short(repr(value)), _table(value)
        except JobCancelled:  # its time is over
            raise
        except BaseException as failure:  # noqa: BLE001 - cells raise what they like
            found["error"] = _short(_shown(failure))
    _names["_"] = value
    # Also of a cell that has failed: they would come with the next one.
    return {"output": output.text(), **found, "pictures": _pictures()}


def write_file(name: str, data: bytes) -> None:
    """Put a file into the folder of the session."""
    Path(_checked(name)).write_bytes(data)


def read_file(name: str) -> bytes | None:
    """Return a file of the folder; ``None`` if there is no such file, or it is too large."""
    path = Path(_checked(name))
    if not path.is_file() or path.stat().st_size > MAX_FILE:
        return None
    return path.read_bytes()


def _run(source: str) -> Any:
    """Run *source*, and return the value of its last statement if that is an expression."""
    tree = ast.parse(source, "<cell>")
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<cell>", "exec"), _names)
        return None
    tree.body.pop()
    exec(compile(tree, "<cell>", "exec"), _names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), _names)


def _shown(failure: BaseException) -> str:
    """Return the traceback from the cell on; the frames before are ours."""
    tb = failure.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename != "<cell>":
        tb = tb.tb_next
    failure.__traceback__ = tb
    return "".join(traceback.format_exception(failure))


def _short(text: str) -> str:
    return text if len(text) <= MAX_OUTPUT else f"{text[:MAX_OUTPUT]}..."


def _table(value: Any) -> dict[str, Any] | None:
    """Return a data frame, or a list of dicts, as texts."""
    if type(value).__name__ == "DataFrame" and hasattr(value, "itertuples"):
        columns = ["", *map(str, value.columns)]
        rows = [list(map(str, row)) for row in value.head(MAX_ROWS).itertuples()]
        return {"columns": columns, "rows": rows, "total": len(value)}
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(row, dict) for row in value):
        return None
    names = list(dict.fromkeys(name for row in value[:MAX_ROWS] for name in row))
    rows = [[str(row.get(name, "")) for name in names] for row in value[:MAX_ROWS]]
    return {"columns": list(map(str, names)), "rows": rows, "total": len(value)}


def _pictures() -> list[bytes]:
    """Return the open figures of matplotlib, and close them."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    found: list[bytes] = []
    if pyplot is not None:
        for number in pyplot.get_fignums()[:MAX_PICTURES]:
            file = io.BytesIO()
            pyplot.figure(number).savefig(file, format="png")
            found.append(file.getvalue())
        pyplot.close("all")
    return found


def _checked(name: str) -> str:
    # The sandbox has the last word; this is for honest users.
    if "/" in name or name in {"", ".", ".."}:
        raise ValueError(f"{name!r} is no name of a file")
    return name
