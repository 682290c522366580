"""Calls of joblib's in supervised workers, and what happens when one of them dies."""

import multiprocessing
import os
import time

import joblib

import asyncpool.joblib


def square(number: int) -> int:
    """Compute."""
    return number * number


def prepare(topping: str) -> None:
    """Have something ready in a new worker."""
    os.environ["TOPPING"] = topping


if __name__ == "__main__":
    asyncpool.joblib.register()
    with joblib.parallel_config(backend="asyncpool", n_jobs=2):
        parallel = joblib.Parallel()
        print(sum(parallel(joblib.delayed(square)(n) for n in range(100))))
        try:
            parallel([joblib.delayed(os._exit)(3)])
        except asyncpool.errors.WorkerCrashedError as error:
            print("exit code", error.exit_code)
        print("the next sum:", sum(parallel([joblib.delayed(square)(12)])))
        try:
            with joblib.Parallel(timeout=0.5) as impatient:
                impatient([joblib.delayed(time.sleep)(60) for _ in range(2)])
        except multiprocessing.TimeoutError:
            print("nobody waits for those that were too slow")

    with joblib.parallel_config(
        "asyncpool", n_jobs=2, initializer=prepare, initargs=("cherry",)
    ):
        print(*joblib.Parallel()([joblib.delayed(os.getenv)("TOPPING")]))

# Output:
# 328350
# exit code 3
# the next sum: 144
# nobody waits for those that were too slow
# cherry
