"""What a run says at its end."""

from __future__ import annotations

import pytest

from asyncpool._cli.map.map_command import Ended
from asyncpool._cli.map.run import Tally
from asyncpool._cli.parameters import Exit


@pytest.mark.parametrize(
    ("code", "tally", "said"),
    [
        (Exit.OK, Tally(done=60, written=60), "60 done in 0:02, 30/s"),
        (Exit.OK, Tally(done=60, found=60, written=60), "60 done in 0:02"),
        (Exit.UNFINISHED, Tally(done=9000), "0 done in 0:02"),
        (Exit.UNFINISHED, Tally(done=9000, written=400), "400 done in 0:02, 200/s"),
    ],
)
def test_the_rate_is_of_what_is_counted(code: int, tally: Tally, said: str) -> None:
    summary = Ended(code, "", tally, seconds=2.0)
    assert list(summary.lines(None)) == [said]
