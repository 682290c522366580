"""Where something may be used that belongs to an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from asyncpool._runtime.base.event_loop import check_home

TEXT = r"^it belongs to another event loop: from another thread use asyncio\.run_"


def test_between_two_runs_of_its_loop_it_may_be_used_without_one() -> None:
    with asyncio.Runner() as home:
        check_home(home.get_loop(), "it")
        check_home(None, "what was not started")


def test_in_its_loop_it_may_be_used() -> None:
    async def main() -> None:
        check_home(asyncio.get_running_loop(), "it")

    asyncio.run(main())


def test_in_another_loop_it_may_not() -> None:
    with asyncio.Runner() as home, asyncio.Runner() as other:

        async def main() -> None:
            check_home(home.get_loop(), "it")

        home.get_loop()
        with pytest.raises(RuntimeError, match=TEXT):
            other.run(main())


def test_beside_its_loop_it_may_not() -> None:
    async def main() -> None:
        home = asyncio.get_running_loop()
        errors: list[RuntimeError] = []

        def there() -> None:
            try:
                check_home(home, "it")
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=there)
        thread.start()
        thread.join()
        [error] = errors
        with pytest.raises(RuntimeError, match=TEXT):
            raise error

    asyncio.run(main())
