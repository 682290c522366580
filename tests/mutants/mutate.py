"""What is changed: one node of a module's syntax tree at a time.

Left alone is what no test can or should notice: annotations, docstrings, texts, assertions.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Mutant", "mutants"]

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Pow: ast.Mult,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change.

    Attributes:
        line: Where that is.
        function: The name of the function or class around it.
        before: What stands there.
        after: What the mutant has instead.
        tree: The whole of the mutant.
    """

    line: int
    function: str
    before: str
    after: str
    tree: ast.Module

    def __str__(self) -> str:
        return f"{self.line} {self.function}: `{self.before}` -> `{self.after}`"


@dataclass(frozen=True, slots=True)
class _Spot:
    """A node that may be changed, and its place in its parent."""

    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST
    function: str

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def mutants(source: str) -> list[Mutant]:
    """Return the mutants of a module, in the order of its lines."""
    tree = ast.parse(source)
    found = []
    for spot in _spots(tree, ""):
        for changed in _changes(spot.node):
            ast.copy_location(changed, spot.node)
            spot.put(changed)
            whole = copy.deepcopy(tree)
            spot.put(spot.node)
            found.append(
                Mutant(
                    line=getattr(spot.node, "lineno", 0),
                    function=spot.function,
                    before=_text(spot.node),
                    after=_text(changed),
                    tree=ast.fix_missing_locations(whole),
                )
            )
    return sorted(found, key=lambda mutant: mutant.line)


def _text(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_params", "bases"}


def _spots(node: ast.AST, function: str) -> Iterator[_Spot]:
    for field, value in ast.iter_fields(node):
        if field in _SKIPPED_FIELDS:
            continue
        several = isinstance(value, list)
        for index, child in enumerate(value if several else [value]):
            if not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            name = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{function}.{child.name}".lstrip(".")
            else:
                yield _Spot(node, field, index if several else None, child, function)
            yield from _spots(child, name)


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case (
            ast.Assert()
            | ast.Import()
            | ast.ImportFrom()
            # Texts, and what makes them.
            | ast.JoinedStr()
            | ast.Constant(value=str())
            | ast.Expr(value=ast.Constant())
            | ast.FunctionDef(name="__repr__" | "__str__")
            # What only a type checker reads.
            | ast.If(test=ast.Name(id="TYPE_CHECKING"))
            | ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec" | "cast"))
            | ast.Assign(targets=[ast.Name(id="__slots__")])
        ):
            return True
        case _:
            return False


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in the place of *node*."""
    match node:
        case ast.Compare(ops=[operator, *others]):
            operators = [_COMPARISONS[type(operator)](), *others]
            yield ast.Compare(node.left, operators, node.comparators)
        case ast.BoolOp(op=operator):
            inverse = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield ast.BoolOp(inverse, node.values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=operator) if type(operator) in _OPERATORS:
            yield ast.BinOp(node.left, _OPERATORS[type(operator)](), node.right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            yield ast.Call(ast.Name(_NAMES[name], ast.Load()), node.args, node.keywords)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.stmt():
            yield from _statements(node)
        case _:
            pass


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.If(test=test) | ast.While(test=test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                inverse = copy.copy(node)
                inverse.test = ast.UnaryOp(ast.Not(), test)
                yield inverse
        case ast.Return(value=ast.expr() as value):
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield ast.Return(ast.Constant(None))
        case ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
            yield ast.AugAssign(node.target, _OPERATORS[type(operator)](), node.value)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass()
        case ast.Expr(value=ast.Call()) | ast.Delete():
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case _:
            pass
