"""Every input that fuzzing has kept goes through its decoder, which survives it."""

from __future__ import annotations

import pytest

from asyncpool._core.wire.messages import Failure
from asyncpool.errors import ProtocolError
from tests.fuzz import CORPUS, targets

KEPT = sorted(CORPUS.iterdir())


@pytest.mark.parametrize("number", range(len(targets.NAMES)), ids=targets.NAMES)
def test_a_decoder_survives_what_was_kept(number: int) -> None:
    kept = [path.read_bytes() for path in KEPT]
    own = [data for data in kept if data and data[0] % len(targets.NAMES) == number]
    assert own  # else it was never fuzzed
    for data in own:
        targets.run(data)


@pytest.mark.parametrize("seed", targets.SEEDS)
def test_a_decoder_takes_what_it_is_for(seed: bytes) -> None:
    targets.run(seed)


def test_the_corpus_is_small() -> None:
    assert len(KEPT) <= 400
    assert sum(path.stat().st_size for path in KEPT) < 300_000


def test_an_error_that_no_decoder_may_raise_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unpack(_: bytes) -> Failure:
        raise ZeroDivisionError

    monkeypatch.setattr(Failure, "unpack", unpack)
    with pytest.raises(ZeroDivisionError):
        targets.run(bytes((targets.NAMES.index("reports"),)))


def test_an_offence_is_no_error() -> None:
    assert issubclass(ProtocolError, Exception)
    targets.run(bytes((targets.NAMES.index("numbers"), 1, 2, 3)))
