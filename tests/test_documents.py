"""What the README and the guides show runs as it is printed, and their links lead somewhere."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest

from asyncpool import (
    Cluster,
    LeaseKeeper,
    Pool,
    ProcessPoolExecutor,
    RestartPolicy,
    WorkerLimits,
)
from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import DOCUMENTS, ROOT, promised


def blocks(document: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block of code, in their order."""
    text = (ROOT / document).read_text()
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


class Reader:
    """Somebody who types all that a document shows, in one folder, with the examples."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "examples", folder / "examples")
        shims = folder / "bin"
        shims.mkdir()
        for name, words in (("python", ""), ("asyncpool", "-m asyncpool ")):
            (shims / name).write_text(
                f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}"$@"\n'
            )
            (shims / name).chmod(0o755)
        self._env = {
            **os.environ,
            "PATH": f"{shims}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{folder / 'examples'}",
        }

    def read(self, shown: list[tuple[str, str]]) -> None:
        """Run the programs, and the lines for the shell."""
        for number, (language, text) in enumerate(shown):
            if language == "python":
                script = self.folder / f"program_{number}.py"
                script.write_text(text)
                assert self.run("python", str(script)) == promised(text), text
            elif language == "sh":
                self.run("sh", "-ec", text)

    def run(self, *command: str) -> str:
        """Run a command to its good end, and return what it printed."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def test_what_the_readme_shows_runs(tmp_path: Path) -> None:
    Reader(tmp_path).read(programs("README.md"))


def test_what_the_examples_show_runs(tmp_path: Path) -> None:
    Reader(tmp_path).read(programs("examples/README.md"))
    lines = (tmp_path / "examples" / "nodes.jsonl").read_text().splitlines()
    found = {line["input"]: line["result"] for line in map(json.loads, lines)}
    files = {
        str(path.relative_to(ROOT / "examples"))
        for path in ROOT.glob("examples/**/*.py")
    }
    assert set(found) == files
    tree = ast.parse((ROOT / "examples" / "quickstart.py").read_text())
    assert found["quickstart.py"] == sum(1 for _ in ast.walk(tree))


def programs(document: str) -> list[tuple[str, str]]:
    """Return what is shown as a whole: lines for the shell, and programs with their output."""
    return [
        (language, text)
        for language, text in blocks(document)
        if language == "sh" or (language == "python" and "# Output:\n" in text)
    ]


GUIDES = [name for name in DOCUMENTS if name.startswith("docs/") and programs(name)]


@pytest.mark.parametrize("document", GUIDES)
def test_what_the_guides_show_runs(document: str, tmp_path: Path) -> None:
    Reader(tmp_path).read(programs(document))


ASK = """
import importlib, sys
from starlette.testclient import TestClient

app = importlib.import_module(sys.argv[1])

def ask(path, pattern, text):
    answer = client.post(path, json={"pattern": pattern, "text": text})
    print(answer.status_code, answer.text.strip().splitlines())

ENDLESS = "(a+)+$", "a" * 64 + "b"
with TestClient(app.app) as client:
    for path in ("/find", "/find-each"):
        ask(path, "a+", "aa b a")
        ask(path, "c", "aa b a")
        ask(path, "(", "")
        ask(path, *ENDLESS)
    print(client.get("/health").json()["state"])
"""

ANSWERS = """\
200 ['["aa","a"]']
200 ['[]']
422 ['{"error":"missing ), unterminated subpattern at position 0"}']
504 ['{"error":"this was not done in time"}']
200 ['aa', 'a']
200 []
422 ['{"error":"missing ), unterminated subpattern at position 0"}']
504 ['{"error":"this was not done in time"}']
running
"""


@pytest.mark.parametrize("module", ["app", "starlette_app"])
def test_the_services_of_the_guide_answer_as_it_says(
    module: str, tmp_path: Path
) -> None:
    for language, text in blocks("docs/web-service.md"):
        if language == "python":
            name, _, _ = text.removeprefix("# ").partition("\n")
            (tmp_path / name).write_text(text)
    assert Reader(tmp_path).run("python", "-c", ASK, module) == ANSWERS


def anchors(document: Path) -> set[str]:
    """Return what may follow a ``#`` in links to a document, as forges make it of headings."""
    text = re.sub(
        r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / document).read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / document).parent / name if name else ROOT / document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


SHOWN_CALL = re.compile(r"`(?:asyncpool\.)?(?:RestartPolicy\.)?(\w+)\(([^`]*)\)")
SHOWN: dict[str, Callable[..., object]] = {
    "Cluster": Cluster,
    "LeaseKeeper": LeaseKeeper,
    "Pool": Pool,
    "ProcessPoolExecutor": ProcessPoolExecutor,
    "RestartPolicy": RestartPolicy,
    "WorkerLimits": WorkerLimits,
    "limited": RestartPolicy.limited,
}

# What multiprocessing.Pool has, in the tables that compare the two.
OTHERS = {"Pool": {"processes", "maxtasksperchild", "context"}}


def keywords(arguments: str) -> set[str]:
    """Return the names of the arguments of a call, but not those of calls within it."""
    outside = re.sub(r"\([^()]*\)", "", arguments)
    return set(re.findall(r"(\w+)=", outside))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_shown_calls_have_arguments_that_there_are(document: str) -> None:
    """Renames leave the texts of documents behind, which nothing runs."""
    if document == "CHANGELOG.md":  # which has old names, too
        return
    for name, arguments in SHOWN_CALL.findall((ROOT / document).read_text()):
        if name in SHOWN:
            there_are = {*signature(SHOWN[name]).parameters, *OTHERS.get(name, ())}
            assert keywords(arguments) <= there_are, f"{name}({arguments})"
