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

ROWS = 20_000


async def assert_comes_back(value: Any, equal: Any, *, apart: bool = True) -> None:
    """Check that it does, and that what comes back lies where the worker has put it."""
    async with patience(), Pool(1) as pool:
        back = await pool.submit(large.same, value)
        assert type(back) is type(value)
        assert equal(back, value)
        assert ("caller" in large.uses(pool)) is apart


async def test_polars() -> None:
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    numbers, text = range(ROWS), polars.Series([f"text {n % 5}" for n in range(ROWS)])
    columns = {
        "number": numbers,
        "missing": [None if n % 3 else n for n in numbers],
        "list": [[n, n] for n in numbers],
        "struct": [{"a": n, "b": "long enough to be elsewhere"} for n in numbers],
        "time": [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)] * ROWS,
        "text": text,
        "category": text.cast(polars.Categorical),
        "enum": text.cast(polars.Enum(text.unique().sort())),
    }

    def equal(one: Any, other: Any) -> bool:
        return bool(one.equals(other, null_equal=True)) and (
            one.dtype == other.dtype and one.name == other.name
            if isinstance(one, polars.Series)
            else one.schema == other.schema
        )

    frame = polars.DataFrame(columns)
    await assert_comes_back(frame, equal)
    await assert_comes_back(frame["list"], equal)
    # Not with all the memory of the table of which it is a part.
    await assert_comes_back(frame.slice(5, ROWS // 4), equal, apart=False)
    # Arrow cannot have this type.
    wide = frame.select(polars.col("number").cast(polars.Int128))
    await assert_comes_back(wide, equal, apart=False)


async def test_torch() -> None:
    torch = pytest.importorskip("torch")
    plain = torch.arange(100_000.0).reshape(100, 1000)

    def equal(one: Any, other: Any) -> bool:
        return torch.equal(one, other) and (one.dtype, one.requires_grad) == (
            other.dtype,
            other.requires_grad,
        )

    weights = torch.nn.Parameter(plain.clone())
    for value in (plain, plain.T, plain[:, ::2], plain.to(torch.bfloat16), weights):
        await assert_comes_back(value, equal)
    await assert_comes_back(plain.clone().requires_grad_(), equal, apart=False)
