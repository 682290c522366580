"""What a codec of the user's must have."""

from __future__ import annotations

from asyncpool import Codec
from tests.helpers.data_jobs import Reversed


def test_a_codec_is_what_has_a_name_and_two_methods() -> None:
    assert isinstance(Reversed(), Codec)
    assert not isinstance(object(), Codec)
