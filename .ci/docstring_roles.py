"""Makes links of the roles in docstrings, such as ``:meth:`start```, for the site.

Loaded by mkdocstrings, as ``mkdocs.yml`` says.  A name of this package that is not public
stays a link to nowhere, which ends a strict build.
"""

from __future__ import annotations

import builtins
import re
import sys
from typing import Any

import griffe

_ROLE = re.compile(r":[a-z]+:`~?([\w.]+)`")
# Of a name that several of them have, the first one's page has the entry.
_PUBLIC_MODULES = (
    "asyncpool.cluster",
    "asyncpool",
    "asyncpool.errors",
    "asyncpool.events",
)
_ELSEWHERE = {*sys.stdlib_module_names, *dir(builtins), "anyio", "uvicorn"}


class DocstringRoles(griffe.Extension):
    """Rewrites each docstring when all modules have been read."""

    def __init__(self) -> None:
        self._public: dict[str, str] = {}

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Learn where each public name is documented, and rewrite what refers to them."""
        for path in _PUBLIC_MODULES:
            module = pkg if path == pkg.path else pkg[path.removeprefix("asyncpool.")]
            for name in map(str, module.exports or ()):
                self._public.setdefault(name.strip("'\""), f"{path}.{name}")
        self._rewrite(pkg)

    def _rewrite(self, found: griffe.Object | griffe.Alias) -> None:
        if found.is_alias:
            return
        if found.docstring:
            inside = found if found.is_class or found.is_module else found.parent
            found.docstring.value = _ROLE.sub(
                lambda role: self._link(role[1], inside), found.docstring.value
            )
        for member in found.members.values():
            self._rewrite(member)

    def _link(self, name: str, inside: griffe.Object | griffe.Alias | None) -> str:
        first, dot, rest = name.partition(".")
        if name.startswith("asyncpool."):
            path = name
        elif first in self._public:
            path = f"{self._public[first]}{dot}{rest}"
        elif inside is not None and not dot and name in inside.all_members:
            path = f"{self._public.get(inside.name, inside.path)}.{name}"
        elif first in _ELSEWHERE:
            return f"`{name}`"
        else:
            path = name
        return f"[`{name.removeprefix('asyncpool.')}`][{path}]"
