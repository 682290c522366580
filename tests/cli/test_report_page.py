"""A report is one file, and no text in it can become a part of the page."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from asyncpool._cli.page.report import report_page
from asyncpool._core.history.history import History
from tests.helpers.told_lines import crashed, job, line, pool_status

HOSTILE = "</script><!-- <img src=x onerror=alert(1)>"


def page() -> str:
    history = History(whole=True)
    history.add(line(0.0, pool_status(), jobs=[job(1, 0.0, HOSTILE)]))
    history.add(line(1.0, pool_status(), events=[crashed(0.5, stack=HOSTILE)]))
    return report_page(HOSTILE, history.since(0))


def test_it_has_what_was_told() -> None:
    [text] = re.findall(
        r'<script type="application/json" id="report">(.*?)</script>', page()
    )
    told = json.loads(text)
    assert told["title"] == HOSTILE
    assert told["shown"]["names"] == [HOSTILE]
    assert told["shown"]["crashes"][0]["stack"] == HOSTILE


def test_hostile_text_does_not_get_out_of_its_element() -> None:
    assert "<img" not in page()
    assert page().count("</script>") == 2


def test_it_loads_nothing_from_anywhere() -> None:
    text = page()
    assert not re.findall(r'(?:src|href)="(?!#)', text)
    assert "http://www.w3.org/2000/svg" in text  # a name, not an address
    assert set(re.findall(r"https?://[\w./]+", text)) == {"http://www.w3.org/2000/svg"}


def test_its_policy_allows_its_own_script_and_style_alone() -> None:
    text = page()
    [policy] = re.findall(r'Content-Security-Policy" content="(.*?)"', text)
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)

    def digest(content: str) -> str:
        found = hashlib.sha256(content.encode()).digest()
        return f"'sha256-{base64.b64encode(found).decode()}'"

    assert policy == (
        f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
