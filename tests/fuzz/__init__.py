"""A program that feeds the decoders of what workers and clients send with anything.

``make fuzz`` runs it; ``tests/test_fuzz.py`` runs what it has kept.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["CORPUS"]

CORPUS = Path(__file__).parent / "corpus"
