"""Which lease has the next turn; test_lease_ledger_model.py has the queues under load."""

from __future__ import annotations

from asyncpool._core.leases.lease_ledger import LeaseQueues, LeaseRecord, RenewalPace


def queues_of() -> tuple[RenewalPace, LeaseQueues[str]]:
    pace = RenewalPace(max_rate=1.0, interval=10.0, overlap=4, max_overlap=99, now=0.0)
    return pace, LeaseQueues(pace, 10.0)


def record(lease: str, due: float = 0.0) -> LeaseRecord[str]:
    made = LeaseRecord(lease, ord(lease), 0.0)
    made.due = due
    return made


def drain(queues: LeaseQueues[str]) -> str:
    """Take all that wait, and return them in their order."""
    taken = ""
    while (next_one := queues.take()) is not None:
        taken += next_one.lease
    return taken


def test_the_earlier_of_two_heads_goes_first() -> None:
    _, queues = queues_of()
    queues.join_backup(record("a"), 0.0)
    queues.join_backup(record("c"), 2.0)
    queues.end_interval(10.0)
    queues.join_arrivals(record("b"), 1.0)
    queues.join_arrivals(record("d"), 3.0)
    assert drain(queues) == "abcd"


def test_no_two_repeats_go_in_a_row_while_others_wait() -> None:
    _, queues = queues_of()
    for lease in "ab":
        queues.join_arrivals(record(lease), 0.0)
    for lease in "xyz":
        queues.join_repeats(record(lease, due=1.0))
    assert drain(queues) == "xaybz"


def test_the_front_is_before_repeats_too() -> None:
    _, queues = queues_of()
    queues.join_arrivals(record("a"), 0.0)
    queues.join_repeats(record("x", due=1.0))
    queues.join_front(record("f"), 1.0)
    assert drain(queues) == "fxa"


def test_what_had_its_turn_waits_for_the_end_of_the_interval() -> None:
    _, queues = queues_of()
    queues.join_backup(record("a"), 0.0)
    assert (queues.any_waits, drain(queues)) == (False, "")
    queues.end_interval(10.0)
    assert drain(queues) == "a"


def test_what_had_no_turn_goes_before_what_had_one() -> None:
    _, queues = queues_of()
    queues.join_backup(record("b"), 0.0)
    queues.end_interval(10.0)
    queues.join_backup(record("c"), 10.0)
    queues.end_interval(20.0)
    assert drain(queues) == "bc"


def test_a_discarded_lease_is_in_no_queue() -> None:
    _, queues = queues_of()
    queues.join_arrivals(record("a"), 0.0)
    queues.join_backup(record("b"), 0.0)
    queues.join_repeats(record("c", due=0.0))
    for lease in "abcd":
        queues.discard(lease)
    queues.end_interval(10.0)
    assert drain(queues) == ""


def test_ticks_for_which_no_lease_waited_are_not_made_good() -> None:
    pace, queues = queues_of()
    queues.join_arrivals(record("a"), 7.0)
    assert pace.next_tick == 7.0
    queues.join_arrivals(record("b"), 8.0)
    assert pace.next_tick == 7.0
