"""What it costs to keep many leases: the share of a core that a LeaseKeeper takes.

    python -m benchmarks.leases [--leases 10000] [--rate 100] [--cycle 120] [--seconds 30]

No peer has anything like it, so it is no question of the others.  The outside system
answers at once, or after two milliseconds; what the user's coroutine itself costs comes on
top.  The time to add all leases is measured apart.
"""

import argparse
import asyncio
import time

from asyncpool import LeaseKeeper


async def nothing(_lease: int) -> None:
    """Answer at once."""


async def two_milliseconds(_lease: int) -> None:
    """Answer as a server nearby does."""
    await asyncio.sleep(0.002)


async def measure(options: argparse.Namespace) -> None:
    for send in (nothing, two_milliseconds):
        async with LeaseKeeper(send, options.rate, options.cycle) as keeper:
            cpu = time.process_time()
            for lease in range(options.leases):
                keeper.add(lease)
            added = time.process_time() - cpu
            await asyncio.sleep(1)
            cpu, beats = time.process_time(), keeper.stats().renewals
            await asyncio.sleep(options.seconds)
            cpu = time.process_time() - cpu
            beats = keeper.stats().renewals - beats
            print(
                f"{send.__name__:>16}: {cpu / options.seconds:.2%} of a core, "
                f"{beats / options.seconds:.1f} beats/s, {cpu / beats * 1e6:.0f} us "
                f"each; {added / options.leases * 1e6:.1f} us to add one"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--cycle", type=float, default=120.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args()
    if options.uvloop:
        import uvloop

        uvloop.run(measure(options))
    else:
        asyncio.run(measure(options))


if __name__ == "__main__":
    main()
