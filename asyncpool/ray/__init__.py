"""A pool over the nodes of a Ray cluster; needs the extra ``ray``."""

from __future__ import annotations

from asyncpool.ray._pool import Pool

__all__ = ["Pool"]
