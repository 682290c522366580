"""What users install is all of the package, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import asyncpool
from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import ROOT

PACKAGE = Path(asyncpool.__file__).parent
VERSION = asyncpool.__version__


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]
    subprocess.run(
        [*build, folder], cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE
    )
    (found,) = folder.iterdir()
    return found


def test_the_wheel_has_the_package_and_its_types(wheel: Path) -> None:
    metadata = f"asyncpool_supervised-{VERSION}.dist-info"
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(name for name in names if not name.startswith(metadata)) == sorted(
        str(path.relative_to(PACKAGE.parent))
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    assert wheel.name == f"asyncpool_supervised-{VERSION}-py3-none-any.whl"
    assert f"{metadata}/licenses/LICENSE" in names
    told = zipfile.ZipFile(wheel).read(f"{metadata}/METADATA").decode().splitlines()
    # PyPI's `asyncpool` is another project's.
    assert "Name: asyncpool-supervised" in told
    # What uvicorn needs for WebSockets, and takes for an extra of its own.
    assert "Requires-Dist: websockets>=13.0; extra == 'cluster'" in told


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Return a wheel with the name, and the one file, of the other project's."""
    folder = "asyncpool-1.0.dist-info"
    record = f"{folder}/RECORD"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        "asyncpool/__init__.py": "class AsyncPool: pass\n",
        f"{folder}/METADATA": "Metadata-Version: 2.1\nName: asyncpool\nVersion: 1.0\n",
        f"{folder}/WHEEL": tags,
    }
    files[record] = "".join(f"{name},,\n" for name in (*files, record))
    found = tmp_path / "asyncpool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(found, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return found


class Environment:
    """A virtual environment that has what the command line needs, and no asyncpool."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "env" / "bin"
        venv = [sys.executable, "-m", "venv", "--without-pip"]
        subprocess.run([*venv, folder / "env"], check=True, timeout=PATIENCE)
        self._needs = folder / "needs"
        self._needs.mkdir()
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if "asyncpool" not in path.name:
                (self._needs / path.name).symlink_to(path)

    def pip(self, *words: str | Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python"]
        done = subprocess.run(
            [*pip, self._bin / "python", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def install(self, *words: str | Path) -> None:
        self.pip("install", "--no-index", "--no-deps", *words)

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._bin / program, *words],
            cwd=self._bin,
            env={**os.environ, "PYTHONPATH": str(self._needs)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


CURE = (
    "pip uninstall asyncpool; "
    "pip install --force-reinstall --no-deps asyncpool-supervised"
)


def test_the_doctor_tells_of_the_package_that_has_the_same_name(
    wheel: Path, theirs: Path, tmp_path: Path
) -> None:
    environment = Environment(tmp_path)
    environment.install(theirs)
    environment.install(wheel)
    done = environment.run("asyncpool", "doctor", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert {
        "name": "asyncpool-supervised",
        "state": "bad",
        "detail": f"{VERSION}; another project's package, asyncpool 1.0, is installed "
        f"in the same folder, and each breaks the other: {CURE}",
    } in json.loads(done.stdout)["platform"]


def test_a_package_that_was_overwritten_says_so_as_far_as_it_can(
    wheel: Path, theirs: Path, tmp_path: Path
) -> None:
    environment = Environment(tmp_path)
    environment.install(wheel)
    environment.install(theirs)
    problem = (
        "asyncpool: another project's package 'asyncpool' was installed over this one, "
        f"which is 'asyncpool-supervised': {CURE}\n"
    )
    for command in (("asyncpool", "doctor"), ("python", "-m", "asyncpool", "doctor")):
        done = environment.run(*command)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", problem)
    # The first half of the cure takes the file along that both have.
    environment.pip("uninstall", "--yes", "asyncpool")
    done = environment.run("asyncpool", "doctor")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", problem)
    environment.install("--force-reinstall", wheel)
    done = environment.run("asyncpool", "doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"name": "asyncpool-supervised", "state": "ok", "detail": VERSION} in (
        json.loads(done.stdout)["platform"]
    )
