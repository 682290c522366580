"""The serializers of pools with pickle."""

from __future__ import annotations

from asyncpool._core.pickling.serializers import PICKLE, PICKLE_WORKER
from tests.helpers.data_jobs import HOME, echo


def test_the_two_halves_of_pickle_fit_each_other() -> None:
    call = PICKLE.pack_job(echo, (1,), {"two": 2}, number=1)
    assert PICKLE_WORKER.load_job(call, echo) == (echo, (1,), {"two": 2})
    for pack in (PICKLE_WORKER.pack_value, PICKLE_WORKER.pack_item):
        packed = pack({3}, None)
        assert PICKLE.load_value(packed) == PICKLE.load_item(packed) == {3}
        assert not PICKLE.is_heavy(packed)
    error = PICKLE.load_error(PICKLE_WORKER.pack_error(ValueError("no"), skip=0))
    assert (type(error), str(error)) == (ValueError, "no")
    details = PICKLE_WORKER.pack_details({4})
    assert PICKLE.load_details(details) == PICKLE_WORKER.load_details(details) == {4}


def test_a_job_is_known_by_the_name_of_its_function() -> None:
    assert PICKLE_WORKER.known_as(echo, None) == f"{HOME}.echo"
