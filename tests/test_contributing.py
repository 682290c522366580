"""What CONTRIBUTING.md and the page on the architecture name is where they say."""

from __future__ import annotations

import re
import tomllib
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


def contracts() -> dict[str, list[list[str]]]:
    """Return the order of what each package has, the highest first, by the package's name."""
    text = (ROOT / "pyproject.toml").read_text()
    found = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    return {
        contract["containers"][0]: [
            re.split(r"\W+", layer) for layer in contract["layers"]
        ]
        for contract in found
        if contract["type"] == "layers"
    }


def test_the_page_on_the_architecture_has_each_layer() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = page[page.index("## The layers") : page.index("## Who decides what")]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    listed = [name for row in rows for name in re.findall("`(.+?)`", row)]
    layers = [name for layer in contracts()["asyncpool"] for name in layer]
    assert sorted(listed) == sorted(layers)


def test_the_guide_for_contributors_has_the_rooms_in_their_order() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `(_\w+)`: [^|]+ \| (.+?) \|$", guide, re.MULTILINE)
    listed = {
        f"asyncpool.{layer}": [re.findall("`(.+?)`", room) for room in rooms.split(";")]
        for layer, rooms in rows
    }
    assert listed == {
        package: rooms
        for package, rooms in contracts().items()
        if package != "asyncpool"
    }
