"""Parsers of the field do their work in ``Sandbox.parser()``, whatever calls they make."""

from __future__ import annotations

import asyncio
import bz2
import ctypes
import email
import gzip
import html.parser
import io
import json
import lzma
import mmap
import plistlib
import socket
import sqlite3
import tarfile
import tempfile
import tomllib
import xml.etree.ElementTree as ET
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Pool, Sandbox
from tests.helpers.sandboxes import needs_sandbox

pytestmark = [pytest.mark.asyncio, needs_sandbox]

_IMAGES = [
    f"PIL.{name}ImagePlugin"
    for name in ("Png", "Jpeg", "Gif", "Tiff", "Bmp", "WebP", "Ppm")
]
XML = b"<a>" + b"<b c='d'/>" * 1000 + b"</a>"


def parse_texts(data: bytes) -> list[Any]:
    html.parser.HTMLParser().feed(data.decode())
    return [
        len(ET.fromstring(data)),
        email.message_from_bytes(b"Subject: it\n\n" + data)["Subject"],
        json.loads(json.dumps({"a": [1, 2]})),
        plistlib.loads(plistlib.dumps({"a": 1})),
        tomllib.loads("a = 1"),
    ]


def unpack_archives(data: bytes) -> list[int]:
    for pack, unpack in (
        (gzip.compress, gzip.decompress),
        (bz2.compress, bz2.decompress),
        (lzma.compress, lzma.decompress),
    ):
        assert unpack(pack(data)) == data
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("file", data)
    with zipfile.ZipFile(zipped) as archive:
        archive.extractall("zip")
    with tarfile.open(fileobj=tarred, mode="w:xz") as archive:
        archive.add("zip")
    tarred.seek(0)
    with tarfile.open(fileobj=tarred) as archive:
        member = archive.extractfile("zip/file")
        assert member is not None
        return [Path("zip/file").stat().st_size, len(member.read())]


def use_files(data: bytes) -> list[Any]:
    database = sqlite3.connect("database")
    database.execute("pragma temp_store = file")
    database.execute("create table t (a)")
    database.executemany("insert into t values (?)", [(i,) for i in range(1000)])
    database.commit()
    [found] = database.execute("select sum(a) from (select a from t order by -a)")
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with mmap.mmap(file.fileno(), 0) as memory:
            return [found[0], len(memory)]


def use_threads_and_loops(data: bytes) -> list[Any]:
    with ThreadPoolExecutor(8) as threads:
        sizes = sum(threads.map(len, [data] * 100))
    called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda number: number + 1)
    return [sizes, called(1), asyncio.run(talk(data * 100))]


async def talk(data: bytes) -> int:
    """Send more than a socket takes at once, in several parts."""
    one, other = socket.socketpair()
    reader, kept = await asyncio.open_connection(sock=one)
    _, writer = await asyncio.open_connection(sock=other)
    writer.writelines([data] * 4)
    got = await asyncio.gather(reader.readexactly(4 * len(data)), writer.drain())
    kept.close()
    writer.close()
    return len(got[0])


def decode_images(data: bytes) -> list[tuple[int, int]]:
    from PIL import Image

    sizes: list[tuple[int, int]] = []
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"):
        file = io.BytesIO()
        Image.frombytes("L", (40, 20), data[:800]).save(file, kind)
        sizes.append(Image.open(file).convert("RGB").resize((20, 10)).size)
    return sizes


def compute_arrays(data: bytes) -> list[Any]:
    import numpy as np

    file = io.BytesIO()
    np.savez_compressed(file, a=np.frombuffer(data[:6400], dtype=np.uint8))
    file.seek(0)
    array = np.load(file)["a"].reshape(80, 80).astype(float)
    return [(array @ array).shape, len(np.fft.fft(array)), np.linalg.norm(array) > 0]


@pytest.mark.parametrize(
    ("job", "result", "preload"),
    [
        (
            parse_texts,
            [1000, "it", {"a": [1, 2]}, {"a": 1}, {"a": 1}],
            ["email.message", "email.parser"],
        ),
        (unpack_archives, [len(XML), len(XML)], []),
        (use_files, [499500, len(XML)], []),
        (
            use_threads_and_loops,
            [100 * len(XML), 2, 400 * len(XML)],
            ["concurrent.futures.thread"],
        ),
        (decode_images, [(20, 10)] * 6, _IMAGES),
        (compute_arrays, [(80, 80), 80, True], ["numpy.lib.format", "numpy.fft"]),
    ],
)
async def test_parsers_work_in_a_sandbox(
    job: Any, result: list[Any], preload: list[str]
) -> None:
    async with Pool(1, preload=[__name__, *preload], sandbox=Sandbox.parser()) as pool:
        assert await pool.submit(job, XML) == result
