"""Names of Dask, imported so that other tests do not see what that does to a process.

Dask imports tblib, which has all exceptions of the process pickled in another way from then on.
"""

from __future__ import annotations

import copyreg

_BEFORE = dict(copyreg.dispatch_table)

from dask import annotate  # noqa: E402
from distributed import Client, LocalCluster, WorkerPlugin  # noqa: E402
from distributed.utils import offload  # noqa: E402

copyreg.dispatch_table.clear()
copyreg.dispatch_table.update(_BEFORE)

__all__ = ["Client", "LocalCluster", "WorkerPlugin", "annotate", "offload"]
