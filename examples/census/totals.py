"""What the findings come to, all together."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest

from census.measure import TOP, Finding, Function, Module, Unparsed


@dataclass(frozen=True, slots=True)
class Totals:
    """The sum of all findings.

    Attributes:
        counts: How many there are of each thing, by its name.
        longest: The longest functions and where they are, longest first.
        imported: The modules that are imported most often, and how often.
        unparsed: The files that could not be parsed.
    """

    counts: dict[str, int]
    longest: list[tuple[Function, str]]
    imported: list[tuple[str, int]]
    unparsed: list[Unparsed]


def add_up(findings: Iterable[Finding]) -> Totals:
    """Sum up *findings*; their order does not matter."""
    ordered = sorted(findings, key=lambda finding: finding.path)
    modules = [finding for finding in ordered if isinstance(finding, Module)]
    unparsed = [finding for finding in ordered if isinstance(finding, Unparsed)]
    imports: Counter[str] = Counter()
    for module in modules:
        imports.update(dict(module.imports))
    by_frequency = sorted(imports.items(), key=lambda item: (-item[1], item[0]))
    functions = ((function, m.path) for m in modules for function in m.longest)
    return Totals(
        counts=_counts(modules, unparsed),
        longest=nlargest(TOP, functions),
        imported=by_frequency[:TOP],
        unparsed=unparsed,
    )


def _counts(modules: list[Module], unparsed: list[Unparsed]) -> dict[str, int]:
    def total(name: str) -> int:
        return sum(getattr(module, name) for module in modules)

    return {
        "files": len(modules) + len(unparsed),
        "not parsed": len(unparsed),
        "lines": total("lines"),
        "functions": total("functions"),
        "async functions": total("async_functions"),
        "classes": total("classes"),
        "lambdas": total("lambdas"),
        "comprehensions": total("comprehensions"),
        "imports": sum(count for m in modules for _, count in m.imports),
        "deepest nesting": max((m.nesting for m in modules), default=0),
    }
