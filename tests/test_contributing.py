"""What CONTRIBUTING.md and the page on the architecture name is where they say."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.helpers.scripts import ROOT

PACKAGE = ROOT / "asyncpool"
GUIDES = ("CONTRIBUTING.md", "docs/architecture.md")

# A file, such as `_core/wire/frames.py`; and what a class has, such as `Traffic.send`.
FILE = re.compile(r"`([\w./-]+\.(?:py|md|yml|toml))`")
MEMBER = re.compile(r"`([A-Z]\w*[a-z]\w*)\.(\w+)`")


def named(pattern: re.Pattern[str]) -> list[tuple[str, ...]]:
    """Return what matches, and the guide, each once."""
    return sorted(
        {
            (guide, *found.groups())
            for guide in GUIDES
            for found in pattern.finditer((ROOT / guide).read_text())
        }
    )


@cache
def sources() -> tuple[str, ...]:
    return tuple(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))


def has(source: str, owner: str, name: str) -> bool:
    """Return whether a module has a class, and below its beginning something of this name."""
    begin = re.search(rf"^class {owner}\b", source, re.MULTILINE)
    if begin is None:
        return False
    told = re.compile(rf"^ +(?:(?:async )?def {name}\b|{name}\b.*[:=])", re.MULTILINE)
    return told.search(source, begin.end()) is not None


@pytest.mark.parametrize(("guide", "name"), named(FILE))
def test_each_file_is_there(guide: str, name: str) -> None:
    places = (ROOT / name, PACKAGE / name, (ROOT / guide).parent / name)
    known = any(place.is_file() for place in places)
    # The name alone, where the folder has been named before.
    assert known or ("/" not in name and list(ROOT.glob(f"tests/*/{name}")))


@pytest.mark.parametrize(("guide", "owner", "name"), named(MEMBER))
def test_each_class_has_what_is_named(guide: str, owner: str, name: str) -> None:
    assert any(has(source, owner, name) for source in sources()), guide
