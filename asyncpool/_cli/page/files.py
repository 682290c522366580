"""The files of the page, which are part of the package."""

from __future__ import annotations

from importlib import resources

# In the order in which the page loads its scripts.
SCRIPTS = (
    "theme.js",
    "text.js",
    "charts.js",
    "task_stream.js",
    "tables.js",
    "dialogs.js",
    "page.js",
)

FILES = {
    "index.html": "text/html",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(SCRIPTS, "text/javascript"),
}


def read_file(name: str) -> str:
    """Return the text of one of :data:`FILES`."""
    return (resources.files("asyncpool._cli.page") / "assets" / name).read_text("utf-8")
