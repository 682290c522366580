"""What processes import: workers little, and a pool what it has.  lint-imports has the layers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.scripts import run_script

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "asyncpool"


def imports(path: Path) -> set[str]:
    """Return the modules that *path* imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return found


def test_workers_need_nothing_that_must_be_installed() -> None:
    strange = {
        (path.stem, name)
        for path in (PACKAGE / "_worker").rglob("*.py")
        for name in {name.split(".")[0] for name in imports(path)}
        if name not in {"asyncpool", *sys.stdlib_module_names}
    }
    # What Pool(worker_loop="uvloop") asks for.
    assert strange == {("runner", "uvloop")}


HEAVY = [
    "anyio",
    "asyncio",
    "asyncpool._core",
    "asyncpool._engine",
    "asyncpool.pool",
    "cloudpickle",
    "concurrent",
    "logging",
    "multiprocessing",
    "psutil",
    "subprocess",
]


@pytest.mark.parametrize(
    "module", ["asyncpool", "asyncpool._worker.process", "asyncpool._worker.launcher"]
)
def test_workers_start_light(module: str) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module}; "
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    # Without the site packages, which also may import what they like at the start.
    found = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert (found.stdout.strip(), found.stderr) == ("", "")


# What a pool imports only if it has that, and what takes some milliseconds.
OF_FEW_POOLS = [
    "asyncpool._cluster",
    "asyncpool._core.data_only",
    "asyncpool._observe",
    "asyncpool._remote",
    "asyncpool._sandbox",
    "asyncpool._wire.formats",
    "asyncpool._wire.profile",
    "asyncpool.profile",
    "html",
    "importlib.resources",
    "tempfile",
]

# The launcher starts while the pool has anyio's backend still to import.
POOL = f"""
import asyncio, sys
import asyncpool
LATE = "anyio._backends._asyncio"
sys.addaudithook(lambda name, _: name == "subprocess.Popen" and print(LATE in sys.modules))

async def main():
    async with asyncpool.Pool(1) as pool:
        print(await pool.submit(abs, -4))

if __name__ == "__main__":
    asyncio.run(main())
    print(*[name for name in {OF_FEW_POOLS!r} if name in sys.modules])
"""


def test_a_pool_imports_what_it_has(tmp_path: Path) -> None:
    assert run_script(tmp_path, POOL).splitlines() == ["False", "4", ""]
