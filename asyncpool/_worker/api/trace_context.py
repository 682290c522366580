"""The trace context of a job, as OpenTelemetry's API has it: spans of the job become children."""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from importlib import import_module


def attach(packed: bytes) -> None:
    """Make the span that *packed* names the parent of what the running code traces.

    The code runs in a context of its own, which ends with the job; so nothing is detached.
    """
    # Who makes spans has imported this, for example to make a TracerProvider in the
    # initializer.  All others need not wait for an import.
    if "opentelemetry.context" not in sys.modules:
        return
    with suppress(
        Exception
    ):  # a propagator's; a job does not fail because of its trace
        headers = pickle.loads(packed)
        context = import_module("opentelemetry.propagate").extract(headers)
        import_module("opentelemetry.context").attach(context)
