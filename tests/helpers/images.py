"""Images, good ones and hostile ones."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image

__all__ = ["image", "opened", "progressive_jpeg", "vast_png"]


def image(kind: str, width: int = 640, height: int = 480, mode: str = "RGB") -> bytes:
    """Return an image file of that *kind*, ``"JPEG"`` for example."""
    file = io.BytesIO()
    Image.radial_gradient("L").resize((width, height)).convert(mode).save(file, kind)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    """Return the image in *data*, read as a whole."""
    picture = Image.open(io.BytesIO(data))
    picture.load()
    return picture


def vast_png(side: int) -> bytes:
    """Return a PNG of a few bytes that says that it has *side* x *side* pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(b"\0")),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def progressive_jpeg(side: int, *, rounds: int) -> bytes:
    """Return a JPEG of *side* x *side* pixels that costs more than it should.

    All coefficients of a progressive image are kept in memory, six bytes for each pixel
    here, and every scan goes through all of them, however little it has to say.  The ten
    scans of a small image are repeated *rounds* times.
    """
    file = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(
        file, "JPEG", progressive=True, subsampling=0
    )
    small = file.getvalue()
    frame, scans = small.index(b"\xff\xc2"), small.index(b"\xff\xda")
    size = struct.pack(">HH", side, side)
    header = small[: frame + 5] + size + small[frame + 9 : scans]
    return header + rounds * small[scans:-2] + small[-2:]
