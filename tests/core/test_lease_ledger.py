"""The rules of the lease ledger, one by one; test_lease_ledger_model.py has them together."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from dataclasses import replace

import pytest

from asyncpool._core.leases.lease_ledger import (
    MAX_THROTTLES,
    SLACK,
    LeaseLedger,
    Lost,
    Missed,
    RenewalDecision,
    RenewalResult,
    Slower,
    longest_gap,
    pause_before,
)
from asyncpool.events import LeaseRelieved, LeaseSaturated

EXTENDED, THROTTLED = RenewalResult.EXTENDED, RenewalResult.THROTTLED
FAILED, GONE = RenewalResult.FAILED, RenewalResult.LOST


def ledger_of(
    leases: str = "",
    *,
    max_rate: float = 1.0,
    interval: float = 10.0,
    max_retries: int = 1,
    overlap: int = 4,
    max_overlap: int = 99,
    ttl: float | None = None,
) -> LeaseLedger[str]:
    """Return a ledger at time 0 with a lease for each letter."""
    ledger: LeaseLedger[str] = LeaseLedger(
        max_rate=max_rate,
        interval=interval,
        max_retries=max_retries,
        overlap=overlap,
        max_overlap=max_overlap,
        now=0.0,
        ttl=ttl,
    )
    for lease in leases:
        ledger.add(lease, 0.0)
    return ledger


def play(ledger: LeaseLedger[str], until: float, *ends: RenewalResult) -> list[str]:
    """Send the renewals that there are before *until*; write down who and when.

    They end at once, in turn as *ends* says, and with success from then on.
    """
    said, results = [], itertools.chain(ends, itertools.repeat(EXTENDED))
    while (due := ledger.next_due()) is not None and due < until:
        lease = ledger.begin_renewal(due)
        if lease is not None:
            ledger.end_renewal(lease, next(results), due)
            said.append(f"{lease}{due:g}")
    return said


def test_every_lease_has_one_beat_in_each_cycle_one_at_a_tick() -> None:
    assert play(ledger_of("abc"), 30) == [
        *("a0", "b1", "c2"),
        *("a10", "b11", "c12"),
        *("a20", "b21", "c22"),
    ]


def test_a_keeper_without_leases_has_nothing_to_wait_for() -> None:
    ledger = ledger_of()
    assert ledger.next_due() is None
    assert ledger.begin_renewal(5.0) is None


def test_who_comes_late_has_its_beat_in_the_same_cycle_behind_the_others() -> None:
    ledger = ledger_of("abc")
    assert play(ledger, 1) == ["a0"]
    ledger.add("d", 0.5)
    assert play(ledger, 20) == ["b1", "c2", "d3", "a10", "b11", "c12", "d13"]


def test_who_comes_and_goes_does_not_delay_who_stays() -> None:
    # Twice as many as there are ticks, each for five seconds.
    ledger = ledger_of("a")
    times = []
    for now in range(100):
        for name in "xy":
            ledger.discard(f"{name}{now - 5}")
            ledger.add(f"{name}{now}", now)
        lease = ledger.begin_renewal(now)
        assert lease is not None
        ledger.end_renewal(lease, EXTENDED, now)
        if lease == "a":
            times.append(now)
    assert times == list(range(0, 100, 10))


def test_a_failed_beat_is_repeated_after_a_pause() -> None:
    # A quarter of a cycle before the last one.
    assert play(ledger_of("abcdef"), 13, FAILED)[:6] == [
        *("a0", "b1", "c2", "a3", "d4", "e5"),
    ]
    assert play(ledger_of("abc"), 13, FAILED) == [
        *("a0", "b1", "c2", "a3"),
        # And a cycle later it comes behind those that had their renewals before.
        *("b10", "c11", "a12"),
    ]


def test_after_the_last_retry_a_lease_waits_for_the_next_cycle() -> None:
    ledger = ledger_of("ab", max_retries=2)
    ends = [FAILED, EXTENDED, FAILED, FAILED, FAILED]
    assert play(ledger, 13, *ends) == [
        "a0",
        "b1",
        "a2",
        "a4.5",
        "b10",
        "a11",
        "b12",
    ]


@pytest.mark.parametrize("retries", [1, 2, 3, 10])
def test_the_pauses_double_and_take_less_than_half_a_cycle(retries: int) -> None:
    pauses = [pause_before(n, retries, 64.0) for n in range(1, retries + 1)]
    assert pauses[-1] == 16.0
    assert all(2 * one == two for one, two in itertools.pairwise(pauses))
    assert sum(pauses) < 32.0
    # The answer to the last success, a cycle, and what is for the next one.
    assert longest_gap(64.0, retries, 1.0) == 1 + 64 + sum(pauses) + (1 + retries)


def test_there_may_be_any_number_of_retries() -> None:
    assert (pause_before(1, 5000, 64.0), pause_before(5000, 5000, 64.0)) == (0.0, 16.0)
    assert longest_gap(64.0, 5000, 0.0) == 96.0


def test_a_repeat_need_not_wait_for_those_whose_turn_it_is() -> None:
    # As many leases as ticks; the first renewal fails, and the second.
    ledger = ledger_of("abcdefgh", interval=8.0)
    assert play(ledger, 18, FAILED, FAILED) == [
        *("a0", "b1", "a2", "c3", "b4", "d5", "e6", "f7", "g8", "h9"),
        *("a10", "c11", "b12", "d13", "e14", "f15", "g16", "h17"),
    ]


def test_no_two_repeats_go_in_a_row_while_others_wait() -> None:
    ledger = ledger_of("abcdefgh", interval=8.0)
    said = play(ledger, 16, *[FAILED] * 99)
    assert "".join(each[0] for each in said).startswith("abacbdcedfegfhg")


def test_a_repeat_is_behind_who_was_throttled() -> None:
    ledger = ledger_of("abc", interval=8.0)
    assert play(ledger, 8, FAILED, THROTTLED) == ["a0", "b1", "b2", "a3", "c4"]


def test_a_lease_that_goes_is_not_repeated() -> None:
    for gone_at in (0.5, 3.5):
        ledger = ledger_of("ab")
        assert play(ledger, 1, FAILED) == ["a0"]
        ledger.next_due()
        if gone_at > 1:
            assert ledger.begin_renewal(gone_at) == "a"
            ledger.end_renewal("a", FAILED, gone_at)
        ledger.discard("a")
        assert [each[0] for each in play(ledger, 12)] == ["b", "b"]


def test_a_success_gives_all_retries_back() -> None:
    ledger = ledger_of("ab", max_retries=1)
    ends = [FAILED, EXTENDED, EXTENDED, EXTENDED, FAILED]
    assert play(ledger, 19, *ends) == ["a0", "b1", "a2.5", "b10", "a11", "a13.5"]
    ledger = ledger_of("ab", interval=8000.0)
    ends = [*[THROTTLED] * MAX_THROTTLES, EXTENDED, EXTENDED, EXTENDED, THROTTLED]
    said = [name[0] for name in play(ledger, 17000, *ends)]
    assert said == [*"a" * (MAX_THROTTLES + 1), "b", "a", "b", "b", "a", "b"]


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_lease_that_fails_for_ever_has_its_retries_in_each_cycle(
    retries: int,
) -> None:
    ledger = ledger_of("a", interval=16.0, max_retries=retries)
    ends = [FAILED] * 99
    pauses = {0: [0], 1: [0, 4], 3: [0, 1, 3, 7]}
    assert play(ledger, 32, *ends) == [
        f"a{start + pause}" for start in (0, 16) for pause in pauses[retries]
    ]


def test_that_it_missed_its_cycle_is_told_with_the_time_since_its_last_beat() -> None:
    ledger = ledger_of("a", max_retries=1)
    verdicts = []
    for now, end in ((0, EXTENDED), (10, FAILED), (13, FAILED), (20, EXTENDED)):
        assert ledger.begin_renewal(now) == "a"
        verdicts.append(ledger.end_renewal("a", end, now + 0.5))
    assert verdicts == [None, None, Missed(13.5), Missed(20)]


def test_the_first_failed_beat_that_is_too_late_is_told_and_one_in_each_cycle() -> None:
    ledger = ledger_of("a", interval=16.0, max_retries=3)
    told: list[tuple[float, RenewalDecision]] = []
    assert play(ledger, 1) == ["a0"]
    while (due := ledger.next_due()) is not None and due < 64:
        ledger.begin_renewal(due)
        verdict = ledger.end_renewal("a", FAILED, due)
        if verdict is not None:
            told.append((due, verdict))
    # 16 and 17 seconds are no more than a cycle and a tenth, or as good as that.
    assert told == [(19, Missed(19)), (35, Missed(35)), (51, Missed(51))]


def test_a_beat_that_comes_a_little_late_has_missed_nothing() -> None:
    for late, verdict in ((0.9, None), (1.1, Missed(11.1))):
        ledger = ledger_of("a")
        play(ledger, 1)
        ledger.begin_renewal(10 + late)
        assert ledger.end_renewal("a", EXTENDED, 12.0) == verdict


def test_a_throttled_lease_stays_in_front_and_everybody_waits() -> None:
    ledger = ledger_of("abc", interval=80.0)
    # Pauses of two ticks, four, eight, and then an eighth of the cycle.
    assert play(ledger, 40, *[THROTTLED] * 4) == [
        *("a0", "a2", "a6", "a14", "a24"),
        *("b25", "c26"),
    ]


def test_one_that_is_throttled_for_itself_does_not_hold_up_the_others() -> None:
    ledger = ledger_of("ab", interval=800.0)
    said = [name[0] for name in play(ledger, 1000, *[THROTTLED] * (MAX_THROTTLES + 1))]
    assert said == [*"a" * (MAX_THROTTLES + 1), *"ba", *"ba"]


def test_it_has_its_place_in_front_again_when_it_has_been_at_the_end() -> None:
    often = [THROTTLED] * (MAX_THROTTLES + 1)
    ledger = ledger_of("ab", interval=8000.0)
    said = [name[0] for name in play(ledger, 8000, *often, *often, THROTTLED)]
    assert said == [*"a" * (MAX_THROTTLES + 1), *"b" * (MAX_THROTTLES + 1), *"aab"]
    # A failure in between is as good as the end of the line.
    ledger = ledger_of("ab", interval=8000.0)
    said = [name[0] for name in play(ledger, 8000, *often[1:], FAILED, FAILED, *often)]
    assert said == [
        *"a" * MAX_THROTTLES,
        "a",
        "b",
        *"a" * (MAX_THROTTLES + 1),
        "b",
        "a",
    ]


def test_only_a_success_ends_the_slowness() -> None:
    ledger = ledger_of("ab", interval=800.0, max_retries=9)
    said = play(ledger, 90, THROTTLED, THROTTLED, FAILED, THROTTLED)
    assert said == ["a0", "a2", "a6", "a7", "a15", "b16"]


def test_a_success_ends_the_slowness() -> None:
    ledger = ledger_of("abc", interval=800.0)
    said = play(ledger, 90, THROTTLED, THROTTLED, EXTENDED, THROTTLED)
    assert said == ["a0", "a2", "a6", "b7", "b9", "c10"]


def test_the_pause_is_the_one_that_the_outside_system_asks_for() -> None:
    for asked, granted in ((0.5, 2.0), (3.5, 3.5), (999.0, 80.0), (float("nan"), 2.0)):
        ledger = ledger_of("a", interval=80.0)
        assert ledger.begin_renewal(0.0) == "a"
        verdict = ledger.end_renewal("a", THROTTLED, 0.0, retry_after=asked)
        assert verdict == Slower(granted)
        assert ledger.next_due() == granted


def test_a_long_pause_is_not_shortened_by_a_later_one() -> None:
    ledger = ledger_of("ab", max_rate=50.0, interval=80.0)
    assert (ledger.begin_renewal(0.0), ledger.begin_renewal(0.0)) == ("a", "b")
    assert ledger.end_renewal("a", THROTTLED, 0.0, retry_after=1.0) == Slower(1.0)
    assert ledger.end_renewal("b", THROTTLED, 0.0) == Slower(0.04)
    assert (ledger.next_due(), ledger.begin_renewal(0.99)) == (1.0, None)
    assert ledger.begin_renewal(1.0) == "b"


def test_of_beats_that_are_throttled_together_only_one_counts() -> None:
    ledger = ledger_of("abc", interval=800.0)
    for now in range(3):
        ledger.begin_renewal(now)
    assert [ledger.end_renewal(lease, THROTTLED, 3.0) for lease in "abc"] == [
        Slower(2)
    ] * 3
    # Nor does a success of that time say anything about the time after it.
    assert ledger.next_due() == 5.0


def test_a_success_from_before_the_pause_does_not_end_it() -> None:
    ledger = ledger_of("ab", interval=800.0)
    ledger.begin_renewal(0.0), ledger.begin_renewal(1.0)
    assert ledger.end_renewal("a", THROTTLED, 2.0) == Slower(2)
    assert ledger.end_renewal("b", EXTENDED, 2.0) is None
    assert ledger.begin_renewal(4.0) == "a"
    assert ledger.end_renewal("a", THROTTLED, 4.0) == Slower(4)


def test_a_lease_that_is_gone_is_forgotten() -> None:
    ledger = ledger_of("ab")
    assert ledger.begin_renewal(0.0) == "a"
    assert ledger.end_renewal("a", GONE, 0.0) == Lost()
    assert "a" not in ledger
    assert play(ledger, 12) == ["b1", "b10"]


def test_a_lease_that_is_discarded_has_no_more_beats() -> None:
    ledger = ledger_of("abcd")
    play(ledger, 1)
    ledger.discard("a")  # in backup
    ledger.discard("b")  # waiting
    ledger.begin_renewal(1.0)
    ledger.discard("c")  # under way
    ledger.discard("never there")
    assert ledger.end_renewal("c", GONE, 1.0) is None
    assert play(ledger, 12) == ["d2", "d10"]


def test_a_lease_that_comes_again_waits_for_the_beat_that_is_under_way() -> None:
    ledger = ledger_of("ab")
    assert ledger.begin_renewal(0.0) == "a"
    ledger.discard("a")
    ledger.add("a", 0.1)
    assert play(ledger, 9) == ["b1"]
    # The news is not of this one.
    assert ledger.end_renewal("a", GONE, 9.0) is None
    assert "a" in ledger
    assert play(ledger, 20) == ["a9", "b10", "a11"]


def test_beats_that_are_answered_a_cycle_later_do_not_delay_who_had_its_turn() -> None:
    # As many leases as ticks.  Four renewals hang until just before the end of the next cycle,
    # which has room for one of them: three of the leases are left over.
    ledger = ledger_of("abcdefghij", overlap=5)
    assert play(ledger, 6) == ["a0", "b1", "c2", "d3", "e4", "f5"]
    assert [ledger.begin_renewal(now) for now in (6.0, 7.0, 8.0, 9.0)] == [*"ghij"]
    assert play(ledger, 19) == ["a10", "b11", "c12", "d13", "e14", "f15"]
    for lease in "ghij":
        ledger.end_renewal(lease, EXTENDED, 19.5)
    assert play(ledger, 32) == [
        "g19.5",
        # These are due first, and were up to 13.5 s apart when they were behind the three.
        *("a20.5", "b21.5", "c22.5", "d23.5", "e24.5", "f25.5"),
        *("h26.5", "i27.5", "j28.5", "g29.5", "a30.5", "b31.5"),
    ]


def test_there_is_no_burst_after_a_stall() -> None:
    ledger = ledger_of("abc")
    play(ledger, 1)
    assert ledger.begin_renewal(57.0) == "b"
    ledger.end_renewal("b", EXTENDED, 57.0)
    assert ledger.begin_renewal(57.0) is None
    # Of all that time no more than the lateness of a timer is made good.
    assert ledger.next_due() == 58.0 - SLACK
    assert play(ledger, 61) == ["c57.998", "a58.998", "b60"]


def test_a_timer_that_is_late_costs_no_ticks() -> None:
    ledger = ledger_of("abcdefgh", max_rate=20.0)
    times = []
    for _ in range(8):
        due = ledger.next_due()
        assert due is not None
        lease = ledger.begin_renewal(due + SLACK)
        assert lease is not None
        ledger.end_renewal(lease, EXTENDED, due + SLACK)
        times.append(due + SLACK)
    assert times == pytest.approx([n / 20 + SLACK for n in range(8)])


@pytest.mark.parametrize(
    ("rate", "cycle", "renewals"),
    [
        *((0.5, 100.0, 1), (39.0, 100.0, 1), (40.0, 100.0, 2), (59.0, 100.0, 2)),
        *((100.0, 100.0, 5), (100.0, 0.2, 5), (100.0, 0.1, 2), (100.0, 0.02, 1)),
    ],
)
def test_at_high_rates_a_tick_is_for_several_beats(
    rate: float, cycle: float, renewals: int
) -> None:
    ledger = ledger_of("abcdefghijklmno", max_rate=rate, interval=cycle, overlap=99)
    moments = []
    for tick in range(3):
        due = ledger.next_due()
        assert due is not None
        assert due == pytest.approx(tick * renewals / rate)
        while ledger.begin_renewal(due) is not None:
            moments.append(due)
    assert len(moments) == 3 * renewals


def test_who_comes_between_two_ticks_need_not_wait_for_a_full_one() -> None:
    ledger = ledger_of("a", max_rate=50.0, interval=100.0)
    assert play(ledger, 1) == ["a0"]
    for name in "bcd":
        ledger.add(name, 0.015)
    # A full tick would be at 0.02; at 0.015 there is half a one.
    assert ledger.next_due() == 0.02
    assert (ledger.begin_renewal(0.015), ledger.begin_renewal(0.015)) == ("b", None)
    assert ledger.next_due() == 0.04
    assert (ledger.begin_renewal(0.04), ledger.begin_renewal(0.04)) == ("c", "d")
    # But a throttled renewal is the end of its tick.
    ledger.add("e", 0.07)
    ledger.end_renewal("d", THROTTLED, 0.07)
    assert ledger.next_due() == 0.07 + 2 / 50
    assert ledger.begin_renewal(0.10) is None


def test_no_more_beats_are_under_way_than_may_overlap() -> None:
    ledger = ledger_of("abc", overlap=2, max_overlap=2)
    assert (
        ledger.begin_renewal(0.0),
        ledger.begin_renewal(1.0),
        ledger.begin_renewal(2.0),
    ) == ("a", "b", None)
    assert ledger.next_due() is None
    ledger.end_renewal("a", EXTENDED, 2.5)
    assert (ledger.next_due(), ledger.begin_renewal(2.5)) == (2.0, "c")


def test_a_beat_that_hangs_beyond_its_cycle_is_not_overtaken() -> None:
    ledger = ledger_of("ab")
    assert ledger.begin_renewal(0.0) == "a"
    assert play(ledger, 35) == ["b1", "b10", "b20", "b30"]
    ledger.end_renewal("a", FAILED, 35.0)
    assert play(ledger, 42) == ["a37.5", "b40", "a41"]


def test_saturation_is_told_at_once_and_once_a_cycle_with_the_arithmetic() -> None:
    ledger = ledger_of("abc", max_rate=0.5, interval=6.0)
    assert (ledger.capacity, ledger.saturated) == (3, False)
    told = LeaseSaturated(leases=4, capacity=3, interval=6.0, rate=0.5, worst_gap=8.0)
    ledger.add("d", 1.0)
    assert ledger.news(1.0) == told
    assert ledger.saturated
    assert "4 leases, but 0.5 renewals/s * 6 s = 3: " in str(told)
    assert "every 4 / 0.5 = 8 s" in str(told)
    assert (ledger.next_news(), ledger.news(6.9)) == (None, None)
    ledger.add("e", 6.9)
    assert (ledger.next_news(), ledger.news(6.9)) == (7.0, None)
    ledger.add("f", 6.95)
    assert ledger.news(7.0) == replace(told, leases=6, worst_gap=12.0)
    assert ledger.news(99.0) is None, "nothing has changed"


def test_saturation_is_told_of_all_leases_that_came_together() -> None:
    ledger = ledger_of("abcdefghij", max_rate=0.5, interval=6.0)
    news = ledger.news(0.0)
    assert isinstance(news, LeaseSaturated)
    assert (news.leases, news.worst_gap) == (10, 20.0)


def test_the_end_of_saturation_is_told_and_so_is_the_next_one() -> None:
    ledger = ledger_of("abcd", max_rate=0.5, interval=6.0)
    assert isinstance(ledger.news(0.0), LeaseSaturated)
    ledger.discard("a")
    assert (ledger.next_news(), ledger.news(5.9)) == (6.0, None)
    assert ledger.news(6.0) == LeaseRelieved(leases=3, capacity=3)
    assert (ledger.next_news(), ledger.news(20.0)) == (None, None)
    ledger.add("a", 20.0)
    assert isinstance(ledger.news(20.0), LeaseSaturated)


def test_beats_that_take_long_overlap_as_far_as_the_rate_asks_for() -> None:
    ledger = ledger_of("abcdefghijklmnopqrst", max_rate=2.0, interval=10.0, overlap=4)
    times, flights = serve(ledger, seconds=4.0, until=200.0)
    assert max(flights) == 8
    assert (ledger.capacity, ledger._pace.rate) == (20, 2.0)
    # After the first cycle, in which that was found out.
    gaps = {round(b - a, 2) for a, b in itertools.pairwise(times["a"][2:])}
    assert gaps == {10.0}


def test_a_cycle_has_fewer_beats_if_too_few_may_overlap() -> None:
    ledger = ledger_of("abcdefghijkl", max_rate=2.0, interval=10.0, max_overlap=4)
    assert (ledger.capacity, ledger.saturated) == (20, False)
    times, _ = serve(ledger, seconds=4.0, until=400.0)
    assert ledger._pace.rate == pytest.approx(1.0)
    assert (ledger.capacity, ledger.saturated) == (10, True)
    gaps = {round(b - a, 2) for a, b in itertools.pairwise(times["a"])}
    assert gaps == {12.0}
    news = ledger.news(400.0)
    assert isinstance(news, LeaseSaturated)
    assert (news.leases, news.capacity) == (12, 10)
    assert news.rate == pytest.approx(1.0)
    assert news.worst_gap == pytest.approx(12.0)


def serve(
    ledger: LeaseLedger[str], *, seconds: float, until: float
) -> tuple[dict[str, list[float]], list[int]]:
    """Have renewals that take so long; return when each lease had one, and how many overlap."""
    times, flights, now = defaultdict[str, list[float]](list), list[int](), 0.0
    under_way: deque[tuple[float, str]] = deque()
    while now < until:
        while under_way and under_way[0][0] <= now:
            ledger.end_renewal(under_way.popleft()[1], EXTENDED, now)
        while (lease := ledger.begin_renewal(now)) is not None:
            times[lease].append(now)
            under_way.append((now + seconds, lease))
            flights.append(len(under_way))
        moments = [ledger.next_due(), *(ends for ends, _ in under_way)]
        now = min(moment for moment in moments if moment is not None and moment > now)
    return times, flights


def test_a_lease_is_given_up_before_it_lapses() -> None:
    ledger = ledger_of("a", ttl=40.0)
    assert play(ledger, 11) == ["a0", "a10"]
    assert (ledger.lapses_at("a"), ledger.next_lapse()) == (50.0, 46.0)
    assert list(ledger.lapsed(45.9)) == []
    assert list(ledger.lapsed(46.0)) == [("a", 36.0)]
    assert ("a" in ledger, ledger.next_lapse(), ledger.next_due()) == (
        False,
        None,
        None,
    )


def test_a_lease_lasts_from_the_begin_of_the_beat_that_has_extended_it() -> None:
    ledger = ledger_of("a", ttl=40.0)
    assert ledger.begin_renewal(3.0) == "a"
    assert ledger.lapses_at("a") == 40.0, "it came at 0"
    ledger.end_renewal("a", EXTENDED, 8.0)
    assert (ledger.lapses_at("a"), ledger.next_lapse()) == (43.0, 39.0)


def test_the_answer_to_a_beat_comes_too_late_for_a_lease_that_was_given_up() -> None:
    ledger = ledger_of("ab", ttl=40.0)
    assert ledger.begin_renewal(35.0) == "a"
    ledger.discard("b")
    assert list(ledger.lapsed(36.0)) == [("a", 36.0)]
    assert ledger.end_renewal("a", EXTENDED, 36.5) is None
    assert ledger.next_lapse() is None


def test_who_has_no_ttl_is_never_given_up() -> None:
    ledger = ledger_of("a")
    assert (list(ledger.lapsed(9e9)), ledger.next_lapse()) == ([], None)
    assert ledger.lapses_at("a") is None


def test_when_it_is_saturated_the_one_that_is_due_first_goes_first() -> None:
    ledger = ledger_of("abcd", max_rate=0.5, interval=6.0)
    assert play(ledger, 5) == ["a0", "b2", "c4"]
    # By now d has waited for longer than anybody, and then comes a again.
    ledger.add("e", 5.0)
    assert play(ledger, 26) == [
        *("d6", "a8", "b10"),
        *("c12", "e14", "d16"),
        *("a18", "b20", "c22"),
        "e24",
    ]


def test_a_cycle_has_as_many_beats_as_it_should_in_spite_of_floats() -> None:
    for rate, cycle, renewals in ((0.1, 30.0, 3), (1.1, 10.0, 11), (0.7, 10.0, 7)):
        assert ledger_of(max_rate=rate, interval=cycle).capacity == renewals
