"""The peers by name, without importing any of them."""

import importlib
import importlib.metadata
import importlib.util
import platform
from dataclasses import dataclass

from benchmarks.torture.peers.base import Peer

OURS = "asyncpool"


@dataclass(frozen=True)
class Entry:
    """Where a peer's adapter is, and how to find out whether the peer is here."""

    adapter: str
    requires: str = ""
    distribution: str = ""

    @property
    def is_installed(self) -> bool:
        return not self.requires or importlib.util.find_spec(self.requires) is not None

    @property
    def version(self) -> str:
        if not self.distribution:
            return f"Python {platform.python_version()}"
        return importlib.metadata.version(self.distribution)

    def load(self) -> Peer:
        module, _, name = self.adapter.partition(":")
        found = getattr(importlib.import_module(f"{__name__}.{module}"), name)()
        assert isinstance(found, Peer)
        return found


PEERS = {
    OURS: Entry("natives:AsyncPool", "asyncpool", "asyncpool-supervised"),
    "ProcessPoolExecutor": Entry("executors:Standard"),
    "multiprocessing.Pool": Entry("pools:Multiprocessing"),
    "loky": Entry("executors:Loky", "loky", "loky"),
    "pebble": Entry("executors:Pebble", "pebble", "pebble"),
    "anyio.to_process": Entry("natives:AnyIO", "anyio", "anyio"),
    "trio-parallel": Entry("natives:TrioParallel", "trio_parallel", "trio-parallel"),
    "aiomisc": Entry("natives:Aiomisc", "aiomisc", "aiomisc"),
    "aiomultiprocess": Entry(
        "natives:Aiomultiprocess", "aiomultiprocess", "aiomultiprocess"
    ),
    "deadpool": Entry("executors:Deadpool", "deadpool", "deadpool-executor"),
    "mpire": Entry("pools:Mpire", "mpire", "mpire"),
    "billiard": Entry("pools:Billiard", "billiard", "billiard"),
}
