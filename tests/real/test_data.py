"""Tables of polars and tensors of PyTorch, there and back in shared memory."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from asyncpool import Pool
from tests.helpers import large
from tests.helpers.patience import patience

# What these libraries start, they never end.
pytestmark = [pytest.mark.asyncio, pytest.mark.leaks_allowed]


async def assert_comes_back(
    value: Any, check: Any, *, apart: bool = True, most: int = 1 << 30
) -> None:
    """Check that it does, and whether it lies where the worker has put it."""
    async with patience(), Pool(1, max_message_size=most) as pool:
        back = await pool.submit(large.same, value)
        assert type(back) is type(value)
        check(back, value)
        if apart:
            assert "caller" in large.uses(pool)
        else:
            await large.all_free(pool)


async def test_polars() -> None:
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    testing = pytest.importorskip("polars.testing")
    numbers = range(20_000)
    text = polars.Series([f"longer than twelve letters {n % 5}" for n in numbers])
    columns = {
        "number": numbers,
        "missing": [None if n % 3 else n for n in numbers],
        "struct": [{"a": [n, n], "b": str(n)} for n in numbers],
        "time": [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)] * len(numbers),
        "text": text,
        "category": text.cast(polars.Categorical),
        "enum": text.cast(polars.Enum(text.unique().sort())),
    }
    frame = polars.DataFrame(columns)
    await assert_comes_back(frame, testing.assert_frame_equal)
    await assert_comes_back(frame["struct"], testing.assert_series_equal)
    # A part travels without the memory of the whole, which has 640 kB.
    part = frame.select("text").slice(5, 5_000)
    await assert_comes_back(part, testing.assert_frame_equal, most=400_000)
    # Arrow cannot have this type.
    wide = frame.select(polars.col("number").cast(polars.Int128))
    await assert_comes_back(wide, testing.assert_frame_equal, apart=False)


async def test_torch() -> None:
    torch = pytest.importorskip("torch")

    def check(back: Any, value: Any) -> None:
        assert torch.equal(back, value)
        assert back.dtype is value.dtype
        assert back.requires_grad is value.requires_grad

    plain = torch.arange(100_000.0).reshape(100, 1000)
    weights = torch.nn.Parameter(plain.clone())
    for value in (plain, plain.T, plain[:, ::2], plain.to(torch.bfloat16), weights):
        await assert_comes_back(value, check)
    await assert_comes_back(plain.clone().requires_grad_(), check, apart=False)
