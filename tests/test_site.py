"""The site has every page and every public name; `make docs` finds links that are dead."""

from __future__ import annotations

import re

import pytest

import asyncpool
from asyncpool import cluster, enums, errors, events
from tests.helpers.scripts import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_every_page_is_in_the_navigation_once() -> None:
    _, _, nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    assert sorted(re.findall(r"[\w/-]+\.md", nav)) == PAGES


def documented() -> set[str]:
    texts = [path.read_text() for path in (DOCS / "api").glob("*.md")]
    return set(re.findall(r"^::: ([\w.]+)$", "\n".join(texts), re.MULTILINE))


def public() -> dict[str, str]:
    """Return which name to look for, for each public one; `events`, `errors` and `enums` are wholes."""
    names = {name: f"asyncpool.{name}" for name in asyncpool.__all__}
    names |= {name: "asyncpool.events" for name in events.__all__ if name not in names}
    names |= {name: f"asyncpool.cluster.{name}" for name in cluster.__all__}
    names |= dict.fromkeys(errors.__all__, "asyncpool.errors")
    names |= dict.fromkeys(enums.__all__, "asyncpool.enums")
    return names | {"to_process": "asyncpool.to_process.run_sync"}


@pytest.mark.parametrize(("name", "where"), public().items())
def test_every_public_name_is_documented(name: str, where: str) -> None:
    assert where in documented(), name


@pytest.mark.parametrize("page", PAGES)
def test_no_link_leaves_the_site(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", (DOCS / page).read_text()):
        if "://" not in link and not link.startswith("#"):
            assert (DOCS / page).parent.joinpath(link).resolve().is_relative_to(DOCS)
