"""The architecture, as a test: imports only ever point downwards."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.scripts import run_script

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "asyncpool"

# What the core may use of the rest of the world.  Pickling is computation, too.
PURE = {
    "ast",
    "__future__",
    "binascii",
    "bisect",
    "cloudpickle",
    "collections",
    "contextvars",
    "copyreg",
    "dataclasses",
    "datetime",
    "enum",
    "functools",
    "heapq",
    "importlib",  # functions that travel by name
    "inspect",
    "io",
    "itertools",
    "json",
    "math",
    "msgspec",  # only where a pool has it as its codec
    "operator",
    "pickle",
    "re",
    "struct",
    "sys",  # what is imported already
    "traceback",
    "types",
    "typing",
    "weakref",
}
# What it may name in its annotations besides.
PURE_TYPES = {"mmap"}
# What one module may: how much CPU time it has used itself.
PURE_HERE = {"plain_data": {"time"}}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "breakpoint"}

# What each part may import of the others, besides itself.
MAY_IMPORT = {
    "enums": set(),
    "events": {"enums"},
    "stats": {"enums", "events"},
    "errors": {"enums", "events"},
    "_core": {"enums", "errors", "events", "stats"},
    "_system": set(),
    "_worker": {"_core", "_system", "enums", "errors", "events"},
    "_runtime": {
        "_core",
        "_system",
        "enums",
        "errors",
        "events",
        "profile",
        "sandbox",
        "stats",
    },
    "profile": {"_core"},
    "sandbox": {"_core"},
}

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def parts(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).with_suffix("").parts


class WithoutTypes(ast.NodeTransformer):
    """Leaves out what only a type checker sees."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node.orelse
        return self.generic_visit(node)


def imports(path: Path, *, types: bool = True) -> set[str]:
    """Return the modules that *path* imports, those for annotations if *types*."""
    tree: ast.AST = ast.parse(path.read_text())
    if not types:
        tree = WithoutTypes().visit(tree)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(path: Path) -> set[str]:
    """Return the parts of the package that *path* imports."""
    names = set()
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "asyncpool":
            names.add(rest[0] if rest else "")
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: ".".join(parts(path)[1:]))
def test_imports_point_downwards(path: Path) -> None:
    part = parts(path)[1]
    if part in MAY_IMPORT:
        assert ours(path) <= MAY_IMPORT[part] | {part}


def test_every_part_has_its_place() -> None:
    faces = {parts(path)[1] for path in MODULES} - set(MAY_IMPORT)
    for path in MODULES:
        if parts(path)[1] in MAY_IMPORT:
            assert not ours(path) & faces, "what is below knows nothing of a face"


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "_core").rglob("*.py")), ids=lambda path: path.stem
)
def test_the_core_is_pure(path: Path) -> None:
    pure = PURE | PURE_HERE.get(path.stem, set()) | {"asyncpool"}
    for name in imports(path, types=False):
        assert name.split(".")[0] in pure, name
    for name in imports(path):
        assert name.split(".")[0] in pure | PURE_TYPES, name
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in IMPURE_CALLS


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "_worker").rglob("*.py")), ids=lambda path: path.stem
)
def test_workers_need_nothing_that_must_be_installed(path: Path) -> None:
    for name in imports(path):
        root = name.split(".")[0]
        if path.stem == "coroutines" and root == "uvloop":
            continue  # which is asked for by Pool(worker_loop="uvloop")
        assert root == "asyncpool" or root in sys.stdlib_module_names, name


HEAVY = [
    "anyio",
    "asyncio",
    "asyncpool._runtime",
    "asyncpool.pool",
    "cloudpickle",
    "concurrent",
    "logging",
    "multiprocessing",
    "psutil",
    "subprocess",
]


@pytest.mark.parametrize(
    "module",
    [
        "asyncpool",
        "asyncpool._worker.bootstrap",
        "asyncpool._worker.launcher.launcher_process",
    ],
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
    "asyncpool._core.codec.formats",
    "asyncpool._core.control.control_protocol",
    "asyncpool._core.profile",
    "asyncpool._core.remote",
    "asyncpool._core.remote_wire",
    "asyncpool._core.sandbox.plan",
    "asyncpool._core.trace",
    "asyncpool._observe",
    "asyncpool._runtime.client",
    "asyncpool._runtime.cluster",
    "asyncpool._runtime.control",
    "asyncpool._runtime.node",
    "asyncpool._runtime.sandbox",
    "asyncpool.profile",
    "html",
    "importlib.resources",
    "tempfile",
]

POOL = f"""
import asyncio, sys
import asyncpool

async def main():
    async with asyncpool.Pool(1) as pool:
        print(await pool.submit(abs, -4))

if __name__ == "__main__":
    asyncio.run(main())
    print(*[name for name in {OF_FEW_POOLS!r} if name in sys.modules])
"""


def test_a_pool_imports_what_it_has(tmp_path: Path) -> None:
    assert run_script(tmp_path, POOL).splitlines() == ["4", ""]
