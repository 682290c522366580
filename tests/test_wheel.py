"""What users install is all of the package, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import asyncpool
from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import ROOT

PACKAGE = Path(asyncpool.__file__).parent


def test_the_wheel_has_the_package_and_its_types(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]
    subprocess.run(
        [*build, tmp_path], cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE
    )
    (wheel,) = tmp_path.iterdir()
    metadata = f"asyncpool-{asyncpool.__version__}.dist-info"
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(name for name in names if not name.startswith(metadata)) == sorted(
        str(path.relative_to(PACKAGE.parent))
        for path in [*PACKAGE.rglob("*.py"), PACKAGE / "py.typed"]
    )
    assert wheel.name == f"asyncpool-{asyncpool.__version__}-py3-none-any.whl"
    assert f"{metadata}/licenses/LICENSE" in names
    # What uvicorn needs for WebSockets, and takes for an extra of its own.
    told = zipfile.ZipFile(wheel).read(f"{metadata}/METADATA").decode()
    assert "Requires-Dist: websockets>=13.0; extra == 'cluster'" in told.splitlines()
