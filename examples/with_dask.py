"""Dask's local scheduler on supervised workers: a task that crashes ends nothing else."""

import os

import dask

import asyncpool


@dask.delayed  # type: ignore[untyped-decorator]
def square(number: int) -> int:
    """Compute."""
    return number * number


@dask.delayed  # type: ignore[untyped-decorator]
def crash() -> None:
    """Take the worker down."""
    os._exit(3)


if __name__ == "__main__":
    with (
        asyncpool.ProcessPoolExecutor(2) as executor,
        dask.config.set(scheduler=executor),
    ):
        print(dask.delayed(sum)([square(n) for n in range(10)]).compute())
        try:
            crash().compute()
        except asyncpool.errors.WorkerCrashedError as error:
            print("exit code", error.exit_code)
        print(square(12).compute())

# Output:
# 285
# exit code 3
# 144
