"""The words that docs/glossary.md rules out are not used: in names, docstrings or documents."""

from __future__ import annotations

import functools
import io
import keyword
import re
import tokenize
from pathlib import Path

import pytest

import asyncpool
from tests.helpers.scripts import ROOT

PACKAGE = Path(asyncpool.__file__).parent
GLOSSARY = ROOT / "docs" / "glossary.md"
DOCUMENTS = sorted(
    {*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"}
    - {GLOSSARY}
)

# | term | meaning | `not this`, `nor that`, but this (in another sense) |
_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ?([^|]*)\|$", re.MULTILINE)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def terms() -> list[str]:
    """Return the terms of the glossary."""
    return [term for term, _, _ in _ROW.findall(GLOSSARY.read_text()) if term != "term"]


def avoided() -> list[str]:
    """Return what is used for nothing."""
    columns = [column for _, _, column in _ROW.findall(GLOSSARY.read_text())]
    return sorted(
        {word for column in columns for word in re.findall("`(.*?)`", column)}
    )


def words_of(text: str) -> str:
    """Return a text, or a name, as lower-case words between single blanks."""
    plain = _HUMP.sub(" ", text).replace("_", " ")
    return f" {' '.join(re.findall(r'[a-z0-9]+', plain.lower()))} "


def uses(text: str, word: str) -> bool:
    """Tell whether *text* has *word*, or its plural."""
    return is_in(words_of(text), word)


def is_in(words: str, word: str) -> bool:
    """Tell whether what :func:`words_of` has returned has *word*, or its plural."""
    wanted = words_of(word).strip()
    return f" {wanted} " in words or f" {wanted}s " in words


def texts_of(path: Path) -> list[tuple[int, str]]:
    """Return the names, comments and docstrings of a module, each with its line."""
    found: list[tuple[int, str]] = []
    begins = True  # a string that stands by itself is a docstring
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        is_name = token.type == tokenize.NAME and not keyword.iskeyword(token.string)
        is_docstring = token.type == tokenize.STRING and begins
        if is_name or is_docstring or token.type == tokenize.COMMENT:
            found.append((token.start[0], token.string))
        if token.type != tokenize.COMMENT:
            begins = token.type in {
                tokenize.NEWLINE,
                tokenize.NL,
                tokenize.INDENT,
                tokenize.DEDENT,
            }
    return found


# Not while the module is imported: each process that runs tests does that.
@functools.cache
def texts() -> list[tuple[str, str]]:
    """Return all names, comments, docstrings and lines of documents, with where they are."""
    return [
        (f"{path.relative_to(PACKAGE.parent)}:{line}", text)
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in texts_of(path)
    ] + [
        (f"{path.relative_to(ROOT)}:{number}", line)
        for path in DOCUMENTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]


def test_what_the_glossary_rules_out_is_not_used() -> None:
    # To look at one long text for each word is faster than to look at each text.
    whole = "".join(words_of(text) for _, text in texts())
    found = [
        (word, where, text)
        for word in avoided()
        if is_in(whole, word)
        for where, text in texts()
        if uses(text, word)
    ]
    assert found == []


def test_no_term_is_ruled_out() -> None:
    assert [term for term in terms() if term in avoided()] == []
    assert len(terms()) == len(set(terms()))


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        ("PoolView", "pool view", True),
        ("_max_rss", "max_rss", True),
        ("the errands of a pool", "errand", True),
        ("HTTPServer.cargo_of", "cargo", True),
        ("seated", "seat", False),
        ("in flight", "in hand", False),
    ],
)
def test_words_are_found_in_names_and_sentences(
    text: str, word: str, *, expected: bool
) -> None:
    assert uses(text, word) is expected
