"""The job: parse one file and say what is in it.

Workers import this module, so it imports little, and nothing of the rest of the
census.  The same file gives the same finding in every process: a file that
cannot be parsed is a finding like any other, not an error.
"""

import ast
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path

TOP = 10  # how many functions of a module can be among the longest of all

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
IMPORTS = (ast.Import, ast.ImportFrom)
BLOCKS = frozenset(
    {
        *FUNCTIONS,
        ast.ClassDef,
        ast.If,
        ast.For,
        ast.AsyncFor,
        ast.While,
        ast.With,
        ast.AsyncWith,
        ast.Try,
        ast.TryStar,
        ast.Match,
    }
)


@dataclass(frozen=True, order=True, slots=True)
class Function:
    """A function and where it is; the order is by length."""

    lines: int
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Module:
    """What one file that could be parsed contains; *longest* comes first."""

    path: str
    lines: int
    functions: int
    async_functions: int
    classes: int
    lambdas: int
    comprehensions: int
    nesting: int
    longest: tuple[Function, ...]
    imports: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Unparsed:
    """Why one file could not be parsed."""

    path: str
    reason: str


Finding = Module | Unparsed


def measure(root: str, path: str) -> Finding:
    """Parse the file *path* below *root*."""
    try:
        source = Path(root, path).read_bytes()
        with warnings.catch_warnings():
            # The compiler's remarks on old code are not what is asked here.
            warnings.simplefilter("ignore")
            tree = ast.parse(source, path)
    except SyntaxError as error:
        where = f" (line {error.lineno})" if error.lineno else ""
        return Unparsed(path, f"{type(error).__name__}: {error.msg}{where}")
    except (RecursionError, MemoryError) as error:
        # The texts tell how deep this process's stack was, not what is in the file.
        return Unparsed(path, f"{type(error).__name__}: nested too deeply")
    except (ValueError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Unparsed(path, f"{type(error).__name__}: {reason}")
    return _count(path, len(source.splitlines()), tree)


def _count(path: str, lines: int, tree: ast.Module) -> Module:
    kinds: Counter[type[ast.AST]] = Counter()
    imports: Counter[str] = Counter()
    functions: list[Function] = []
    nesting = 0
    for node, depth in _walk(tree):
        kinds[type(node)] += 1
        nesting = max(nesting, depth)
        if isinstance(node, IMPORTS):
            imports.update(_imported(node))
        elif isinstance(node, FUNCTIONS):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            functions.append(Function(length, node.name, node.lineno))
    return Module(
        path=path,
        lines=lines,
        functions=kinds[ast.FunctionDef],
        async_functions=kinds[ast.AsyncFunctionDef],
        classes=kinds[ast.ClassDef],
        lambdas=kinds[ast.Lambda],
        comprehensions=sum(kinds[kind] for kind in COMPREHENSIONS),
        nesting=nesting,
        longest=tuple(nlargest(TOP, functions)),
        imports=tuple(sorted(imports.items())),
    )


def _walk(tree: ast.AST) -> Iterator[tuple[ast.AST, int]]:
    """Yield each node with the number of blocks around its inside.

    A stack of its own instead of recursion: some of the files exist to break
    recursive programs.
    """
    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        for child in ast.iter_child_nodes(node):
            deeper = type(child) in BLOCKS and not _is_elif(node, child)
            stack.append((child, depth + deeper))


def _is_elif(parent: ast.AST, child: ast.AST) -> bool:
    return (
        isinstance(parent, ast.If)
        and isinstance(child, ast.If)
        and parent.orelse == [child]
    )


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name.partition(".")[0]
    elif node.module and not node.level:
        yield node.module.partition(".")[0]
