"""Every input that fuzzing has kept goes through its decoder, which survives it."""

from __future__ import annotations

import pytest

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
