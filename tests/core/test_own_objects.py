"""What agents send of asyncpool's own, and that nothing else is unpickled."""

from __future__ import annotations

import copyreg
import os
import pickle

import pytest

from asyncpool._core.remote_wire.own_objects import load_own, pack_own
from asyncpool.enums import RunState
from asyncpool.errors import PoolFullError, ProtocolError
from asyncpool.stats import PoolStats


def test_errors_and_figures_arrive() -> None:
    error = load_own(pack_own(PoolFullError(waiting=3, max_queued=3)))
    assert isinstance(error, PoolFullError)
    assert error.max_queued == 3
    stats = PoolStats(state=RunState.NEW, workers=2)
    assert load_own(pack_own({"stats": stats})) == {"stats": stats}


def test_what_others_have_registered_for_exceptions_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dask imports tblib, which registers reducers of its own."""
    monkeypatch.setitem(
        copyreg.dispatch_table, PoolFullError, lambda _: (ValueError, ("other",))
    )
    error = PoolFullError(waiting=3, max_queued=3)
    assert isinstance(pickle.loads(pickle.dumps(error)), ValueError)
    assert isinstance(load_own(pack_own(error)), PoolFullError)


@pytest.mark.parametrize("value", [os.system, PoolFullError.__init__, pickle.loads])
def test_nothing_else_is_unpickled(value: object) -> None:
    with pytest.raises(ProtocolError, match="none of asyncpool's"):
        load_own(pickle.dumps(value, 5))


@pytest.mark.parametrize("data", [b"", b"no pickle"])
def test_what_is_no_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        load_own(data)
