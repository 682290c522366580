"""The page as one file, which shows a run that is over; it needs no server and no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from asyncpool._cli.page.files import SCRIPTS, read_file

# What a report begins with, by which a later run knows that it may replace it.
BEGIN = "<!doctype html>\n<!-- a report of asyncpool -->\n"

_CSP = '<meta http-equiv="Content-Security-Policy" content="{policy}">'


def report_page(title: str, history: Mapping[str, Any]) -> str:
    """Return the text of the file.

    Args:
        title: What ran.
        history: What there is to show.
    """
    style = read_file("style.css")
    script = "\n".join(read_file(name) for name in SCRIPTS)
    # Text from jobs must not end the element, or begin a comment.
    shown = json.dumps({"title": title, "shown": history}).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head, _, body = read_file("index.html").partition("<!-- files -->")
    body = body.partition("<!-- end of files -->")[2]
    return "".join(
        (
            BEGIN,
            head.partition("\n")[2],
            _CSP.format(policy=policy),
            f"\n<style>{style}</style>",
            f'\n<script type="application/json" id="report">{shown}</script>',
            body.replace("</body>", f"<script>{script}</script>\n</body>"),
        )
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
