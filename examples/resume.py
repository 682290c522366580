"""A long job that is killed half-way, and resumed by another worker."""

import asyncio
import os
import signal

import asyncpool


def count_primes(limit: int, deadly: int) -> tuple[int, int]:
    """Count the primes below *limit*; return that and where this attempt began.

    The first attempt is killed when it gets to *deadly*, as by an operator, or for want
    of memory.
    """
    job = asyncpool.current_job()
    start, found = job.last_details or (2, 0)
    for number in range(start, limit):
        if number == deadly and job.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        found += all(number % d for d in range(2, int(number**0.5) + 1))
        asyncpool.heartbeat((number + 1, found))
    return found, start


async def main() -> None:
    """Follow the job, and lose its worker."""
    async with asyncpool.Pool(workers=2) as pool:
        # Two seconds without a heartbeat would mean that it hangs.
        view = pool.options(max_attempts=2, heartbeat_timeout=2.0)
        job = view.submit(count_primes, 50_000, deadly=30_000)
        last = 0
        async for number, _ in job.progress():
            assert number >= last, "it never falls back"
            last = number
        found, start = await job
        print(f"{found} primes below {last}, in attempt {job.attempt}")
        print(f"which began at {start}")


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# 5133 primes below 50000, in attempt 2
# which began at 30000
