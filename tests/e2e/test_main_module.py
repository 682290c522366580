"""Scripts: what lives in ``__main__`` travels by value, with or without a guard."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.helpers.scripts import finish, run_script, start_script

SCRIPT = """
    import asyncio
    import dataclasses
    import enum
    import functools

    import asyncpool

    FACTOR = 3


    def scale(number):
        return number * FACTOR


    def outer(number):
        return scale(number) + 1


    class Colour(enum.Enum):
        RED = 1


    @dataclasses.dataclass
    class Point:
        x: int

        def moved(self, by):
            return Point(self.x + by)


    class OwnError(Exception):
        def __init__(self, *, code):
            super().__init__("own")
            self.code = code


    def fail():
        raise OwnError(code=7)


    async def main():
        offset = 10
        async with asyncpool.Pool(2, initializer=scale, initargs=(1,)) as pool:
            print(await pool.submit(scale, 5))
            print(await pool.submit(outer, 5))
            print(await pool.submit(lambda n: n + offset, 5))
            print(await pool.submit(functools.partial(scale, 6)))
            print(await pool.submit(Point(1).moved, 2) == Point(3))
            print(await pool.submit(lambda: Colour.RED) is Colour.RED)
            try:
                await pool.submit(fail)
            except OwnError as error:
                print(type(error) is OwnError, error.code)


    asyncio.run(main())
"""

EXPECTED = ["15", "16", "15", "18", "True", "True", "True 7"]


def test_a_script_without_a_guard(tmp_path: Path) -> None:
    assert run_script(tmp_path, SCRIPT).splitlines() == EXPECTED


def test_a_script_from_stdin(tmp_path: Path) -> None:
    text = textwrap.dedent(SCRIPT)
    process = start_script(tmp_path, SCRIPT, from_stdin=True)
    out, err = finish(process, text)
    assert err == ""
    assert out.splitlines() == EXPECTED


def test_a_module_beside_the_script_is_found(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("def seven():\n    return 7\n")
    source = """
        import asyncio, sys
        import asyncpool, neighbour

        async def main(launcher):
            async with asyncpool.Pool(1, launcher=launcher) as pool:
                print(await pool.submit(neighbour.seven))

        asyncio.run(main(sys.argv[1]))
    """
    for launcher in ("forkserver", "spawn"):
        assert run_script(tmp_path, source, launcher) == "7\n"


def test_a_module_that_shadows_the_standard_library_does_no_harm(
    tmp_path: Path,
) -> None:
    for name in ("socket", "struct", "signal", "token"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not me')\n")
    source = """
        import sys
        del sys.path[0]
        import asyncio, math
        import asyncpool

        async def main():
            async with asyncpool.Pool(1) as pool:
                print(await pool.submit(math.factorial, 5))

        asyncio.run(main())
    """
    assert run_script(tmp_path, source) == "120\n"


@pytest.mark.parametrize("configured", [False, True])
def test_what_a_job_prints_is_not_lost(tmp_path: Path, *, configured: bool) -> None:
    source = """
        import asyncio, logging, sys
        import asyncpool

        if sys.argv[1] == "True":
            logging.basicConfig(
                stream=sys.stdout, format="%(levelname)s:%(name)s: %(message)s"
            )
            logging.getLogger().setLevel(logging.INFO)

        def speak():
            print("hello")
            print("oh", file=sys.stderr)

        async def main():
            async with asyncpool.Pool(1) as pool:
                await pool.submit(speak)

        asyncio.run(main())
    """
    process = start_script(tmp_path, source, str(configured))
    out, err = finish(process)
    if configured:
        lines = sorted(
            line for line in out.splitlines() if ":asyncpool.worker: " in line
        )
        assert len(lines) == 2
        assert lines[0].startswith("INFO:asyncpool.worker: ")
        assert lines[0].endswith(": hello")
        assert lines[1].startswith("WARNING:asyncpool.worker: ")
        assert lines[1].endswith(": oh")
        assert err == ""
    else:
        assert (out, err) == ("hello\n", "oh\n")


@pytest.mark.parametrize("use", ["pool", "executor"])
def test_output_can_be_inherited(tmp_path: Path, use: str) -> None:
    source = """
        import asyncio, logging, sys
        import asyncpool

        logging.basicConfig(level=logging.INFO, filename=sys.argv[2])

        def speak():
            print("hello")
            print("oh", file=sys.stderr)

        async def main():
            async with asyncpool.Pool(1, worker_output="inherit") as pool:
                await pool.submit(speak)

        if sys.argv[1] == "pool":
            asyncio.run(main())
        else:
            with asyncpool.ProcessPoolExecutor(1, worker_output="inherit") as executor:
                executor.submit(speak).result()
    """
    log = tmp_path / "log"
    process = start_script(tmp_path, source, use, str(log))
    assert finish(process) == ("hello\n", "oh\n")
    assert "is ready" in log.read_text()
    assert "hello" not in log.read_text()
