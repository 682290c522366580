"""A pool, a few jobs, and one that takes its worker down."""

import asyncio
import ctypes

import asyncpool


def square(number: int) -> int:
    """Compute something, in another process."""
    return number * number


def segfault() -> bytes:
    """Read from address 0, as only a bug in a C extension would."""
    return ctypes.string_at(0)


async def main() -> None:
    """Lose a worker, and nothing else."""
    async with asyncpool.Pool(workers=2) as pool:
        squares = [pool.submit(square, number) for number in range(5)]
        broken = pool.submit(segfault)
        more = [pool.submit(square, number) for number in range(5, 10)]
        print("squares:", *await asyncio.gather(*squares, *more))
        try:
            await broken
        except asyncpool.errors.WorkerCrashedError as error:
            print(f"the job that crashed: {error.signal}, attempt {error.attempt}")
        print("and the pool goes on:", await pool.submit(square, 12))


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# squares: 0 1 4 9 16 25 36 49 64 81
# the job that crashed: SIGSEGV, attempt 1
# and the pool goes on: 144
