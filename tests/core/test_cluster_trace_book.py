"""Which lines the events of a cluster become: every order of them makes a trace."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncpool._core.trace.cluster_trace_book import ClusterTraceBook, Counted
from asyncpool.events import (
    Broken,
    Crashed,
    Event,
    Exited,
    Ready,
    Resized,
    Retiring,
    Spawned,
)
from tests.helpers.crashes import crash_with
from tests.helpers.traces import Slice, Traced, check

SLOT_0, SLOT_1 = 10_000, 20_000
CRASH = crash_with(stack="here")


def book() -> ClusterTraceBook:
    return ClusterTraceBook("cluster shop", 7000, 7)


def shown(book: ClusterTraceBook) -> Traced:
    return check("".join(book.lines))


def spans(traced: Traced, track: int = SLOT_0) -> list[tuple[str, int, int | None]]:
    found = [each for each in traced.slices if each.track == track]
    found.sort(key=lambda each: each.begin)
    return [(each.name, each.begin, each.end) for each in found]


def lived(book: ClusterTraceBook, *events: Event) -> None:
    """Have one event after the other happen, one second apart."""
    for second, event in enumerate(events, 1):
        book.happened(event, float(second))


def test_a_worker_starts_serves_drains_and_ends() -> None:
    it = book()
    lived(
        it,
        Spawned(0, 1, 70),
        Ready(0, 1, 70, 0.5),
        Retiring(0, 1, "roll"),
        Exited(0, 1, 70, exit_code=0, reason="roll"),
    )
    traced = shown(it)
    assert spans(traced) == [
        ("starting", 1_000_000, 2_000_000),
        ("serving", 2_000_000, 3_000_000),
        ("draining", 3_000_000, 4_000_000),
    ]
    assert traced.names == {1: "the cluster", SLOT_0: "slot 0"}
    [exited] = traced.instants
    assert (exited["name"], exited["args"]["reason"]) == ("exited", "roll")
    assert not traced.whole


def test_a_crash_is_an_instant_with_the_end_of_its_stderr() -> None:
    it = book()
    lived(it, Spawned(0, 1, 70), Ready(0, 1, 70, 0.5), Crashed(CRASH))
    it.end(9.0)
    traced = shown(it)
    assert spans(traced)[-1] == ("serving", 2_000_000, 3_000_000)
    crashed, _ = traced.instants
    assert (crashed["name"], crashed["tid"], crashed["ts"]) == (
        "crashed",
        SLOT_0,
        3_000_000,
    )
    assert crashed["args"]["stderr"] == "first\nlast"
    assert crashed["args"]["stack"] == "here"
    assert traced.whole


def test_what_is_on_is_told_before_it_is_over() -> None:
    it = book()
    lived(it, Spawned(0, 1, 70), Ready(0, 1, 70, 0.5))
    it.begin_reload(5.0)
    assert spans(shown(it))[-1] == ("serving", 2_000_000, None)
    assert spans(shown(it), 1) == [("reload", 5_000_000, None)]


def test_a_reload_is_a_slice_of_the_whole_cluster() -> None:
    it = book()
    it.begin_reload(1.0)
    it.end_reload(3.0, 2, "")
    it.begin_reload(4.0)
    it.end(5.0)
    first, last = shown(it).slices
    assert first == Slice(
        "reload", 1, 1_000_000, 3_000_000, {"replaced": 2, "reason": ""}
    )
    assert last.args == {"replaced": 0, "reason": "the cluster has ended"}


def test_workers_drain_when_the_cluster_ends() -> None:
    it = book()
    lived(it, Spawned(0, 1, 70), Ready(0, 1, 70, 0.5))
    it.drains(0, 4.0)
    it.drains(0, 4.5)
    it.drains(1, 4.0)
    it.happened(Exited(0, 1, 70, reason="close"), 6.0)
    assert spans(shown(it))[-2:] == [
        ("serving", 2_000_000, 4_000_000),
        ("draining", 4_000_000, 6_000_000),
    ]


def test_figures_are_told_when_they_change() -> None:
    it = book()
    for second in range(7):
        it.count(
            float(second),
            Counted(
                connections=3,
                answered=100 * min(second, 4),
                open_requests=second // 3,
                memory=5_000_000,
            ),
        )
    assert shown(it).counters == {
        "open connections": [3],
        "open requests": [0, 1, 2],
        "requests a second": [0.0, 100.0, 0.0],
        "memory of the workers": [5.0],
    }


def test_what_is_about_the_whole_cluster_is_on_its_track() -> None:
    it = book()
    lived(it, Resized(3), Broken("no start succeeds", ()))
    resized, gave_up = shown(it).instants
    assert (resized["tid"], resized["args"]) == (1, {"workers": 3})
    assert gave_up["args"] == {"reason": "no start succeeds"}


def test_lines_that_are_lost_are_told_and_names_come_again() -> None:
    it = book()
    lived(it, Spawned(0, 1, 70))
    it.lines.clear()
    it.lost(2.0, 5)
    told = "".join(it.lines)
    assert '"lines are missing"' in told
    assert '"slot 0"' in told


happenings = st.one_of(
    st.builds(Spawned, st.integers(0, 1), st.just(1), st.just(70)),
    st.builds(Ready, st.integers(0, 1), st.just(1), st.just(70), st.just(0.5)),
    st.builds(Retiring, st.integers(0, 1), st.just(1), st.text()),
    st.builds(Exited, st.integers(0, 1), st.just(1), st.just(70)),
    st.just(Crashed(CRASH)),
    st.builds(Resized, st.integers(1, 3)),
)


@given(st.lists(st.tuples(happenings, st.floats(0, 1), st.booleans()), max_size=30))
def test_any_order_of_events_is_a_trace(
    life: list[tuple[Event, float, bool]],
) -> None:
    it, now = book(), 1.0
    for event, later, drains in life:
        now += later
        it.happened(event, now)
        if drains:
            it.drains(0, now - later / 2)
    it.end(now)
    assert shown(it).whole


def test_a_phase_begins_when_the_one_before_it_has_ended() -> None:
    it = book()
    it.happened(Spawned(0, 1, 70), 1.0)
    it.happened(Crashed(CRASH), 1.0)  # so its end is a microsecond later
    it.happened(Ready(0, 1, 70, 0.5), 1.0)
    it.end(2.0)
    starting, serving = shown(it).slices
    assert starting.end == serving.begin
