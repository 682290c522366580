"""The options of a command about its log."""

from __future__ import annotations

import click

log_level = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is logged at least, here and in workers.",
)
log_format = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How records are written: as text, or each as a line of JSON, what workers "
    "print and log included.",
)
