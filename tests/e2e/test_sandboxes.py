"""Sandboxes: what cannot be is refused early and by name, and parsers do their work."""

from __future__ import annotations

import asyncio
import bz2
import ctypes
import dataclasses
import email
import errno
import gzip
import html.parser
import io
import json
import lzma
import mmap
import os
import plistlib
import re
import socket
import sqlite3
import tarfile
import tempfile
import tomllib
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Pool, RestartPolicy, Sandbox, WorkerLimits
from asyncpool.errors import PoolBrokenError, UnsupportedPlatformError
from tests.helpers import seccomp
from tests.helpers.command import run_code
from tests.helpers.inside import pretend_machine
from tests.helpers.pools import case
from tests.helpers.sandboxes import needs_sandbox
from tests.helpers.scripts import run_script

ONCE = RestartPolicy(max_failed_starts=1)


MISSING = "/no/such does not exist; make it before the pool, or leave it out"
ROOT_OWNS = (
    "that is root, whose files would be the worker's own: name a user who owns nothing, or "
    "leave it out"
)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"read": ["/no/such"]}, f"read=...): {MISSING}"),
        ({"write": ["/no/such"]}, f"write=...): {MISSING}"),
        (
            {"read": ["/etc/passwd"], "workdir": "/etc/passwd"},
            "workdir=...): /etc/passwd is no folder here",
        ),
        (
            {"write": ["/no/such"], "workdir": "/no/such"},
            "workdir=...): /no/such is no folder here",
        ),
        ({"user": "root"}, f"user='root'): {ROOT_OWNS}"),
        ({"user": 0}, f"user=0): {ROOT_OWNS}"),
        ({"user": "nobody-here"}, "user='nobody-here'): there is no such user"),
        ({"user": -1}, "user=-1): there is no such user"),
    ],
)
def test_what_cannot_be_is_refused_by_the_constructor(
    settings: Mapping[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'Sandbox({text}')}$"):
        Pool(sandbox=Sandbox(**settings))


def test_a_limit_has_one_place() -> None:
    limits, text = (
        WorkerLimits(rlimits={"RLIMIT_AS": 1 << 30}),
        (
            "worker_limits sets RLIMIT_AS, and so does the sandbox (memory): leave it to one of them"
        ),
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        Pool(sandbox=Sandbox(memory=1 << 30), worker_limits=limits)


def test_links_are_followed_before_paths_are_compared(tmp_path: Path) -> None:
    (tmp_path / "out" / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "out" / "in")
    sandbox = Sandbox(read=[tmp_path / "link"], write=[tmp_path / "out"])
    text = f"'{tmp_path}/out/in' is below '{tmp_path}/out' of write"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        Pool(sandbox=sandbox)


def test_the_folder_of_private_folders_is_not_for_workers() -> None:
    folder = os.path.realpath(tempfile.gettempdir())
    text = f"Sandbox(write=...): {folder} holds the private folders of workers"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        Pool(sandbox=Sandbox(write=[folder]))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may become any user")
def test_only_root_can_have_workers_of_another_user() -> None:
    with pytest.raises(ValueError, match="only root can have workers of another user"):
        Pool(sandbox=Sandbox(user="nobody"))
    with pytest.raises(ValueError, match="that is the user of the service itself"):
        Pool(sandbox=Sandbox(user=os.geteuid()))


def test_a_sandbox_is_a_sandbox() -> None:
    with pytest.raises(TypeError, match="sandbox must be a Sandbox or None, not 3"):
        Pool(sandbox=3)  # type: ignore[arg-type]


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_machine(monkeypatch, "Darwin", "23.1.0", "arm64")
    with pytest.raises(UnsupportedPlatformError) as caught:
        Pool(sandbox=Sandbox())
    assert str(caught.value) == (
        "this sandbox cannot be enforced here: sandbox: a sandbox needs Linux, and this is "
        "Darwin; run the service in a Linux container or virtual machine; or accept that with "
        "strict=False"
    )


def look_around(path: str) -> tuple[str, str, str]:
    return Path(path).read_text(), str(Path.cwd()), os.environ["TMPDIR"]


@pytest.mark.asyncio
@pytest.mark.logs("sandbox-incomplete")
@pytest.mark.parametrize("system", ["Linux", "Darwin"])
async def test_a_sandbox_that_is_not_strict_does_what_it_can_and_says_the_rest(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    system: str,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("it")
    pretend_machine(monkeypatch, system, "5.4.0", os.uname().machine)
    sandbox = dataclasses.replace(Sandbox.parser(), strict=False, memory=None)
    async with Pool(1, preload=[__name__], sandbox=sandbox, name="lax") as pool:
        text, here, folder = await pool.submit(look_around, str(secret))
        assert text == "it"
        assert here == folder != str(Path.cwd())
    [record] = [r for r in caplog.records if "strict=False" in r.getMessage()]
    assert record.getMessage().startswith(
        "pool lax: its sandbox (strict=False) does not keep everything in: "
    )
    needed = (
        "needs Linux" if system == "Darwin" else "Landlock 6, and this kernel is 5.4.0"
    )
    assert needed in record.getMessage()


MEMORY = (
    "preload left memory that all workers share, by which a job could reach the others: "
    "{}; make it in the initializer, or name another preload"
)
MAPPED = r"8192 bytes of /dev/zero \(deleted\)"
OF_IT = r" \(module leaves_something_behind\)"
LEFT = {
    "file = open('/etc/passwd')": (
        r"preload left descriptors open, which jobs would have: .*\(/etc/passwd\); "
        "close them after the import, or name another preload"
    ),
    "import mmap; TABLE = mmap.mmap(-1, 8192)": MEMORY.format(MAPPED + OF_IT),
    # Protected against mistakes, and not against mprotect().
    "import mmap; TABLE = mmap.mmap(-1, 8192, prot=mmap.PROT_READ)": MEMORY.format(
        MAPPED
    ),
    "import multiprocessing; TABLE = multiprocessing.RawArray('b', 8000)": MEMORY.format(
        r"\d+ bytes of /dev/shm/pym-\S+ \(deleted\)" + OF_IT
    ),
    (
        "import threading\n"
        "wait = threading.Event().wait\n"
        "threading.Thread(target=wait, name='left', daemon=True).start()"
    ): (
        "preload left threads behind, which would be outside of the sandbox: left "
        r"\(of leaves_something_behind\); start them in the initializer, or name another"
    ),
}


@needs_sandbox
@pytest.mark.asyncio
@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
@pytest.mark.parametrize("source", LEFT)
async def test_what_a_preload_leaves_behind_is_named(
    source: str, launcher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "leaves_something_behind.py").write_text(source)
    pool = Pool(
        1,
        preload=["leaves_something_behind"],
        sandbox=Sandbox(),
        restart_policy=ONCE,
        launcher=launcher,
    )
    with pytest.raises(PoolBrokenError, match=LEFT[source]):
        async with pool:
            pass


@needs_sandbox
def test_functions_of_a_script_work_and_are_told_nothing_of_its_arguments(
    tmp_path: Path,
) -> None:
    out = run_script(
        tmp_path,
        """
        import asyncio, sys
        from pathlib import Path
        from asyncpool import Pool, Sandbox

        def read(path):
            try:
                return Path(path).read_text()
            except PermissionError:
                return sys.argv[1:]

        async def main():
            sys.argv.append("--secret")
            async with Pool(1, sandbox=Sandbox.parser()) as pool:
                print(await pool.submit(read, "/etc/passwd"))
            async with Pool(1, launcher="spawn", sandbox=Sandbox.parser()) as pool:
                print(await pool.submit(read, "/etc/passwd"))

        if __name__ == "__main__":
            asyncio.run(main())
        """,
    )
    assert out == "[]\n[]\n"


# Parsers of the field do their work, whatever calls they make.

_IMAGES = [
    f"PIL.{name}ImagePlugin"
    for name in ("Png", "Jpeg", "Gif", "Tiff", "Bmp", "WebP", "Ppm")
]
PRELOAD = [
    "email.message",
    "email.parser",
    "concurrent.futures.thread",
    "numpy.lib.format",
    "numpy.fft",
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


@needs_sandbox
@pytest.mark.asyncio
async def test_parsers_work_in_a_sandbox() -> None:
    size = len(XML)
    work: dict[Callable[[bytes], Any], list[Any]] = {
        parse_texts: [1000, "it", {"a": [1, 2]}, {"a": 1}, {"a": 1}],
        unpack_archives: [size, size],
        use_files: [499500, size],
        use_threads_and_loops: [100 * size, 2, 400 * size],
        decode_images: [(20, 10)] * 6,
        compute_arrays: [(80, 80), 80, True],
    }
    preload = [__name__, *PRELOAD, *_IMAGES]
    async with Pool(1, preload=preload, sandbox=Sandbox.parser()) as pool:
        for job, result in work.items():
            with case(job):
                assert await pool.submit(job, XML) == result


# Where something else refuses system calls that the kernel has.

needs_seccomp = pytest.mark.skipif(
    not seccomp.available(), reason="the numbers of system calls are not known here"
)
FILE = "workers share plain files with their pool, and large objects go through sockets"
NUMBER = "workers are signalled by number"
ADVICE = (
    "allow it in the sandbox's filter of system calls ('asyncpool doctor' tells what "
    "else is missing)"
)


@needs_seccomp
@pytest.mark.parametrize(
    ("calls", "said", "number"),
    [
        (["memfd_create"], {"memfd_create": FILE}, errno.EPERM),
        (["pidfd_open"], {}, errno.EPERM),
        (["pidfd_send_signal"], {"pidfd_send_signal": NUMBER}, errno.EPERM),
        (["pidfd_send_signal"], {"pidfd_send_signal": NUMBER}, errno.ENOSYS),
        (["getpriority", "sched_getaffinity", "prlimit64"], {}, errno.EPERM),
        (sorted(seccomp.CALLS), {"memfd_create": FILE}, errno.ENOSYS),
    ],
)
def test_a_pool_does_without_what_is_refused_and_says_so_once(
    tmp_path: Path, calls: list[str], said: dict[str, str], number: int
) -> None:
    out = run_script(
        tmp_path,
        f"""
        import asyncio, json
        from tests.helpers import seccomp, tour
        seccomp.refuse({number}, *{calls})
        said = asyncio.run(tour.tour())
        print(json.dumps([text for text in said if "refused" in text]))
        """,
    )
    reason = f"[Errno {number}] {os.strerror(number)}"
    assert json.loads(out) == [
        f"{call} is refused here ({reason}): {instead}; {ADVICE}"
        for call, instead in said.items()
    ]


BY_NUMBER = "workers are known and signalled by their numbers"


@needs_seccomp
@pytest.mark.parametrize(
    ("call", "name", "loss"),
    [
        (
            "memfd_create",
            "shared memory",
            "large arrays are sent through sockets, some ten times slower",
        ),
        ("pidfd_open", "pidfd", BY_NUMBER),
        ("pidfd_send_signal", "pidfd", BY_NUMBER),
        (
            "prlimit64",
            "limits and niceness",
            "they are taken for the same, and all cores for usable",
        ),
    ],
)
def test_the_doctor_finds_what_is_refused_and_what_to_allow(
    tmp_path: Path, call: str, name: str, loss: str
) -> None:
    done = run_code(
        tmp_path,
        f"""
import sys
from tests.helpers import seccomp
seccomp.refuse(1, {call!r})
sys.argv = ["asyncpool", "doctor", "--json"]
from asyncpool._cli import main
main()
""",
    )
    assert (done.code, done.err) == (0, "")
    platform = json.loads(done.out)["platform"]
    [finding] = [item for item in platform if item["state"] == "note"]
    assert finding["name"] == name
    assert finding["detail"] == (
        f"{call} is refused (Operation not permitted): allow it in the sandbox, such as "
        f"the container's seccomp profile; without it, {loss}"
    )
