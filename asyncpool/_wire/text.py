"""Make text from others fit for a log and a terminal; write amounts of memory, and names of functions.

Control characters move the cursor, clear the screen, or set its title.  Line separators
begin what looks like a line of the log.  Characters that turn the direction of writing
make one text look like another.  All of them are written as Python escapes.  Nothing else
changes, except that a message of several lines is indented from its second line on.

The amounts of memory are for people.  Programs find the same amounts as integers.
Errors, reports and logs name jobs by their functions.
"""

from __future__ import annotations

import re
from functools import partial
from types import FunctionType, MethodType

TYPE_CHECKING = False  # see _wire/records.py

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Text = str | bytes | memoryview

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
_SEPARATORS = (0x2028, 0x2029)
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))

_LINES = {
    **{code: f"\\x{code:02x}" for code in _CONTROLS},
    **{code: f"\\u{code:04x}" for code in (*_SEPARATORS, *_DIRECTIONS)},
    ord("\t"): "\t",
    ord("\n"): "\n",
}
_LINE = _LINES | {ord("\n"): "\\n"}

# Letters and marks that nobody sees, beside those that are not printable to Python.
_UNSEEN = (
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x3164, 0xFFA0),
    *(*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)),
)
_NAME = frozenset(map(chr, _UNSEEN))

# How many characters are translated in one step of C code, which holds all threads.
_PIECE = 16_384


# All text of workers, clients and other processes comes through one of the next four, which differ in
# what becomes of line feeds; bytes that are not UTF-8 are replaced, and *most* characters are kept.


def printable(data: Text, most: int | None = None) -> str:
    """Return *data* as a part of one line."""
    return _escaped(data, most, _LINE)


def printable_text(data: Text, most: int | None = None) -> str:
    """Return *data* as a message: its lines after the first are indented, as in :func:`indent`."""
    first, line_feed, others = printable_block(data, most).partition("\n")
    return first + line_feed + indent(others) if line_feed else first


def printable_block(data: Text, most: int | None = None) -> str:
    """Return *data*, such as a traceback, with its lines as they are; a log has them indented."""
    return _escaped(data, most, _LINES)


def indent(text: str) -> str:
    """Return *text* with all of its lines indented: none of them looks like a record of a log."""
    lines = text.split("\n")
    if all(line[:1] in {"", " ", "\t"} for line in lines):
        return text
    return "\n".join(line and f"    {line}" for line in lines)


def _escaped(data: Text, most: int | None, table: dict[int, str]) -> str:
    text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    text = text[:most]
    if text.isprintable():
        return text
    # Halves of surrogate pairs, which JSON can bring, could not be written to any file.
    text = text.encode(errors="backslashreplace").decode()
    starts = range(0, len(text), _PIECE)
    return "".join(text[at : at + _PIECE].translate(table) for at in starts)


def printable_name(text: str) -> str:
    """Return *text* as a name, in which all that nobody sees is escaped: else it looks like another."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        it if it.isprintable() and it not in _NAME else ascii(it)[1:-1] for it in text
    )


_STEP = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def in_units(size: int) -> str:
    """Return a number of bytes as a text, such as ``512 MiB``.

    A number with a decimal place is rounded; a number without one is exact.
    """
    if size < _STEP:
        return f"{size} byte{'' if size == 1 else 's'}"
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    whole, rest = divmod(size, _STEP**power)
    number = f"{size / _STEP**power:.1f}" if rest else f"{whole}"
    return f"{number} {_UNITS[power - 1]}"


# Which part of a traceback concerns the user, if the traceback is already a text.

# Paths of code that is not the user's.
_OURS = (
    r"/(<frozen |asyncpool/(_cluster|_core|_sandbox|_wire|_worker|cluster)/"
    r"|asyncio/|importlib/|site-packages/uvicorn/)"
)


def users_own(text: str) -> str:
    """Return a traceback without asyncpool's own frames; empty if there are no others."""
    kept: list[str] = []
    found = False
    hidden = -1  # the indentation of the frame that is left out
    for line in text.splitlines():
        content = line.lstrip(" |")  # exception groups have a margin
        depth = len(line) - len(content)
        if 0 <= hidden < depth:
            continue
        hidden = -1
        if depth and content.startswith('File "'):
            # In a frozen program the paths begin at the packages.
            if re.search(_OURS, "/" + content.split('"')[1]):
                hidden = depth
                continue
            found = True
        kept.append(line)
    return "\n".join(kept).rstrip() if found else ""


# A longer name is cut.
MAX_NAME = 200

# The logger of warnings about jobs, and that of ``current_job().logger``.
JOB_LOGGER = "asyncpool.job"

# That of a server's access log: not below asyncpool's own, whose records only the service makes.
ACCESS_LOGGER = "access"

# What workers call in place of a user's function, which is its first argument; see _worker/api.py.
_STAND_IN = "asyncpool._worker.api.call_chunk"


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of *function*, such as ``"shop.images.resize"``.

    A partial and a bound method have the name of the function in them.  An object has
    the name of its class.  Control characters are escaped.  This raises nothing,
    whatever the function's own attributes raise.
    """
    found: Any = function
    while True:
        if type(found) is MethodType:
            found = found.__func__
        elif type(found) is partial:
            found, args = found.func, found.args
            plain = type(found) is FunctionType and args
            if plain and f"{found.__module__}.{found.__qualname__}" == _STAND_IN:
                found = args[0]
        else:
            break
    try:
        name = _text(found.__qualname__)
        module = _text(getattr(found, "__module__", None))
    except BaseException:  # noqa: BLE001 - it has no such attribute, or its own code fails
        module = name = ""
    if not name:
        # What Python itself says about the class, whatever that and its metaclass say.
        said = type.__dict__["__module__"], type.__dict__["__qualname__"]
        module, name = (_text(it.__get__(type(found))) for it in said)
    if module == "__mp_main__":  # what workers call the script
        module = "__main__"
    text = f"{module}.{name}" if module else name
    return short_name(printable_name(text))


def short_name(text: str) -> str:
    """Return *text*, cut if it is too long for a name."""
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}..."


def _text(value: Any) -> str:
    """Return the characters of *value* if it is a text, else an empty text."""
    return str.__str__(value) if issubclass(type(value), str) else ""


# By which names commands find pools and servers.

MAX_PROGRAM_NAME = 64

# What such a name is, in words.
NAMES = (
    f"1 to {MAX_PROGRAM_NAME} of A-Z, a-z, 0-9, '.', '-', '_' and ':', the first of them neither "
    "'.' nor '-'"
)


def is_name(text: str) -> bool:
    """Tell whether this is a name that can be found, as it becomes a part of a path."""
    known = re.fullmatch("[A-Za-z0-9_:][A-Za-z0-9_:.-]*", text)
    return known is not None and len(text) <= MAX_PROGRAM_NAME
