"""The lines of a trace: JSON, whatever a name or a crash has in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.trace.trace_lines import (
    HEAD,
    POOL_TRACK,
    LineMaker,
    Names,
    text_of,
    track_of,
)

MAKE = LineMaker(12_345_001)


def only(line: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(line.removesuffix(",\n"))
    return found


def test_a_file_is_json_from_its_head_to_its_tail() -> None:
    text = MAKE.head("pool shop", 12_345) + MAKE.counter("n", 5, "jobs", 2)
    first, *_, counter, last = json.loads(text + MAKE.tail(7))
    assert text.startswith(HEAD)
    assert first["args"] == {"name": "pool shop", "service": 12_345}
    assert (counter["ph"], counter["ts"], counter["args"]) == ("C", 5, {"jobs": 2})
    assert (last["ph"], last["ts"]) == ("i", 7)


@given(st.text(st.characters(), max_size=30))
def test_any_text_can_be_told(text: str) -> None:
    told = json.loads(text_of(text))
    assert told == text.encode(errors="replace").decode()
    assert text_of(text).isascii()
    assert "\n" not in text_of(text)


def test_no_half_of_a_surrogate_pair_gets_out() -> None:
    assert text_of("a\udc80b") == '"a?b"'


def test_of_a_long_text_the_end_is_told() -> None:
    told = json.loads(text_of("x" * 9000 + "the reason"))
    assert told.endswith("the reason")
    assert len(told) < 8200


def test_the_names_that_are_kept_are_bounded() -> None:
    names = Names()
    assert [names.find(f"f{n}") for n in range(2500)] == [
        f'"f{n}"' for n in range(2500)
    ]
    assert len(names._known) <= 1000


def test_tracks_of_slots_are_their_own() -> None:
    tracks = [track_of(slot, lane) for slot in range(4) for lane in range(1100)]
    assert len({POOL_TRACK, *tracks}) == 4 * 1100 + 1
    assert tracks == sorted(tracks)


@pytest.mark.parametrize(
    ("again", "arrows"), [(False, {"flow_out"}), (True, {"flow_in", "flow_out"})]
)
def test_a_job_waits_on_the_track_of_the_queue(again: bool, arrows: set[str]) -> None:  # noqa: FBT001
    line = only(MAKE.queued(7, 100, '"app.work"', again=again))
    assert (line["ph"], line["ts"], line["tid"]) == ("b", 100, POOL_TRACK)
    assert line["args"] == {"job": 7, "function": "app.work"}
    assert {key for key in line if key.startswith("flow")} == arrows
    assert line["id"] == line["bind_id"]
    end = only(MAKE.dequeued(7, 120, "cancelled"))
    assert (end["ph"], end["ts"], end["id"]) == ("e", 120, line["id"])
    assert (end["cat"], end["name"]) == (line["cat"], line["name"])


def test_jobs_and_pools_have_ids_of_their_own() -> None:
    makers = [LineMaker(12_345_000 + pool) for pool in range(3)]
    lines = [m.queued(n, 1, '"f"', again=False) for m in makers for n in range(1, 30)]
    assert len({str(only(line)["id"]) for line in lines}) == len(lines)


def test_an_attempt_ends_the_waiting() -> None:
    text = MAKE.job(
        7, 10_000, '"f"', begin=50, run=9, details='"attempt":1', again=False
    )
    end, job = (only(line) for line in text.splitlines(keepends=True))
    assert (end["ph"], end["ts"]) == ("e", 50)
    assert (job["ph"], job["ts"], job["dur"], job["tid"]) == ("X", 50, 9, 10_000)
    assert job["args"] == {"job": 7, "attempt": 1}
    assert "flow_out" not in job


def test_an_attempt_that_runs_is_begun_and_ended_later() -> None:
    _, begun = MAKE.begun(7, 10_000, '"f"', 50, '"attempt":1').splitlines()
    end = only(MAKE.ended(10_000, '"f"', 90, '"outcome":"ok"'))
    first = only(begun.removesuffix(","))
    assert (first["ph"], first["ts"], end["ph"], end["ts"]) == ("B", 50, "E", 90)
    assert (first["tid"], first["name"]) == (end["tid"], end["name"])


def test_an_instant_has_what_is_known() -> None:
    args = {"n": 1, "half": 0.5, "none": None, "what": ValueError("no \udc80")}
    line = only(MAKE.instant("crashed", 5, args, 10_000))
    assert (line["ph"], line["s"], line["tid"]) == ("i", "t", 10_000)
    assert line["args"] == {"n": 1, "half": 0.5, "none": None, "what": "no ?"}
    assert only(MAKE.instant("resized", 5, {}, None))["s"] == "p"
