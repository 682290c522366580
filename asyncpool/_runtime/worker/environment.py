"""The environment variables of a worker that is started now."""

from __future__ import annotations

import traceback

from asyncpool._core.policies.worker_env import WorkerEnv
from asyncpool._core.wire.messages import Variables
from asyncpool._runtime.launcher.launcher_process import LaunchError


def environment_of(
    worker_env: WorkerEnv | None, rank: int, *, forked: bool
) -> Variables:
    """Return the variables that the worker with this *rank* alone has.

    Raises:
        LaunchError: If the user's function fails, or returns what cannot be had.
    """
    if worker_env is None:
        return ()
    try:
        return worker_env.of(rank, forked=forked)
    except Exception as error:
        text = str(error)
        if not text.startswith("worker_env("):
            text = f"worker_env({rank}) raised {type(error).__name__}: {text}"
        failure = LaunchError(text)
        failure.trace = traceback.format_exc()
        raise failure from error
