"""Where faults come from: the corpus of defects, and mutants of the modules that decide."""

from __future__ import annotations

import ast
import copy
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ROOT", "Edit", "Fault", "defects", "mutants"]

ROOT = Path(__file__).parents[2]
_HERE = Path(__file__).parent


class Edit(NamedTuple):
    """A change of one file: *old*, which stands there once, becomes *new*."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that can be planted.

    Attributes:
        meets: What a user meets.
        tests: What is expected to find it: files, or tests in them.
        commit: What has mended it.
    """

    id: str
    capability: str
    meets: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    commit: str = ""

    def planted(self, root: Path = ROOT) -> dict[str, str]:
        """Return the new text of each file below *root* that it changes.

        Raises:
            ValueError: If it does not apply.
            SyntaxError: If the result is no Python.
        """
        texts: dict[str, str] = {}
        for edit in self.edits:
            path = root / edit.file
            if not path.is_file():
                raise ValueError(f"there is no {edit.file}")
            text = texts.get(edit.file, path.read_text())
            if (found := text.count(edit.old)) != 1:
                raise ValueError(f"{edit.file} has the old text {found} times")
            texts[edit.file] = text.replace(edit.old, edit.new)
        for file, text in texts.items():
            compile(text, file, "exec")
        return texts


def defects() -> list[Fault]:
    """Return the defects of the history."""
    found = tomllib.loads((_HERE / "corpus.toml").read_text())["fault"]
    for each in found:
        each["edits"] = tuple(Edit(**edit) for edit in each.pop("edit"))
        each["tests"] = tuple(each["tests"])
    return [Fault(**each) for each in found]


def mutants() -> Iterator[Fault]:
    """Yield the mutants, module by module."""
    for file, tests in tomllib.loads((_HERE / "mutants.toml").read_text()).items():
        source, module = (ROOT / file).read_text(), Path(file).stem
        for number, (about, text) in enumerate(_mutants(source)):
            edits = (Edit(file, source, text),)
            capability = f"mutants-{module}"
            yield Fault(f"{module}-{number}", capability, about, edits, tuple(tests))


# One node of the syntax tree is changed at a time.  Left alone is what no test can or should
# notice: annotations, docstrings, texts, assertions.

_PAIRS = "Lt LtE Gt GtE Eq NotEq Is IsNot In NotIn And Or Add Sub Mult Div BitOr BitAnd"
_ONE, _TWO = _PAIRS.split()[::2], _PAIRS.split()[1::2]
_OTHER: dict[str, str] = {
    **dict(zip(_ONE, _TWO, strict=True)),
    **dict(zip(_TWO, _ONE, strict=True)),
    **dict.fromkeys(("FloorDiv", "Mod", "Pow"), "Mult"),
    "LShift": "RShift",
    "RShift": "LShift",
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SKIPPED = {"annotation", "returns", "decorator_list", "type_params", "bases"}


def _mutants(source: str) -> Iterator[tuple[str, str]]:
    """Yield what each mutant has changed, and its text."""
    data, starts = source.encode(), [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _nodes(ast.parse(source)):
        for part, after in _changes(node):
            assert part.end_lineno is not None
            assert part.end_col_offset is not None
            begin = starts[part.lineno - 1] + part.col_offset
            end = starts[part.end_lineno - 1] + part.end_col_offset
            before = " ".join(data[begin:end].decode().split())
            text = data[:begin] + after.encode() + data[end:]
            yield f"{part.lineno}: `{before}` -> `{after}`", text.decode()


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_node = isinstance(child, ast.AST) and field not in _SKIPPED
            if is_node and not _is_left_alone(child):
                yield child
                yield from _nodes(child)


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case (
            ast.Assert()
            | ast.Import()
            | ast.ImportFrom()
            | ast.JoinedStr()
            | ast.Constant(value=str())
            | ast.Expr(value=ast.Constant())
            | ast.FunctionDef(name="__repr__" | "__str__")
            | ast.If(test=ast.Name(id="TYPE_CHECKING"))
            | ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec" | "cast"))
            | ast.Assign(targets=[ast.Name(id="__slots__")])
        ):
            return True
        case _:
            return False


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield what may be replaced in *node*, and the text for it."""
    match node:
        case ast.Compare(ops=[operator, *others]):
            yield node, _changed(node, ops=[_other(operator), *others])
        case ast.BoolOp(op=operator):
            yield node, _changed(node, op=_other(operator))
        case ast.BinOp(op=operator) if type(operator).__name__ in _OTHER:
            yield node, _changed(node, op=_other(operator))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.IfExp(body=body, orelse=orelse):
            yield node, _changed(node, body=orelse, orelse=body)
        case ast.Constant(value=bool(value)):
            yield node, f"{not value}"
        case ast.Constant(value=int(number) | float(number)):
            yield node, f"{number + 1}"
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            yield node.func, _NAMES[name]
        case ast.If(test=test) | ast.While(test=test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield test, f"not ({ast.unparse(test)})"
        case ast.Return(value=ast.expr() as result):
            if not (isinstance(result, ast.Constant) and result.value is None):
                yield node, "return None"
        case ast.AugAssign(op=operator) if type(operator).__name__ in _OTHER:
            yield node, _changed(node, op=_other(operator))[1:-1]
        case (
            ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_])
            | ast.Expr(value=ast.Call())
            | ast.Delete()
        ):
            yield node, "pass"
        case ast.Break():
            yield node, "continue"
        case ast.Continue():
            yield node, "break"
        case _:
            pass


def _other(operator: ast.AST) -> ast.AST:
    other: ast.AST = getattr(ast, _OTHER[type(operator).__name__])()
    return other


def _changed(node: ast.AST, **fields: Any) -> str:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return f"({ast.unparse(other)})"
