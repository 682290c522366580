"""The contract of a worker: what its loggers record goes home, whole and in order."""

from __future__ import annotations

from collections.abc import Callable

from asyncpool._core.wire.frames import FrameKind
from asyncpool._core.wire.log_records import MAX_ENTRY, LogEntry
from tests.helpers import jobs, logs
from tests.worker.by_hand import Door, Worker, revoke_frame

LIGHT = "[name in __import__('sys').modules for name in ('logging', 'threading')]"


def entry(worker: Worker) -> LogEntry:
    frame = worker.heard(worker.control)
    assert frame is not None
    assert (frame.kind, frame.job, frame.attempt, frame.number) == (
        FrameKind.RECORD,
        0,
        0,
        0,
    )
    assert len(frame.payload) <= MAX_ENTRY
    return LogEntry.unpack(frame.payload)


def test_a_worker_that_does_not_log_imports_no_logging(worker: Worker) -> None:
    worker.send(1, eval, LIGHT)
    assert worker.result() == (1, [False, False])


def test_a_record_says_whose_it_is(worker: Worker) -> None:
    worker.send(7, logs.log_in_detail)
    found = entry(worker)
    assert (found.name, found.level, found.level_name) == (logs.LOGGER, 30, "WARNING")
    assert found.message == "one and 2"
    assert (found.job, found.attempt) == (7, 1)
    assert (found.process, found.process_name) == (worker.process.pid, "MainProcess")
    assert found.thread_name == "MainThread"
    assert found.path == logs.__file__
    assert found.function == "log_in_detail"
    assert found.fields.pop("lock").startswith("<unlocked _thread.lock object at ")
    assert found.fields == {"tenant": "acme", "size": 3}
    assert found.trace == ""
    assert "in log_in_detail" in found.stack


def test_an_error_goes_along_as_text(worker: Worker) -> None:
    worker.send(1, logs.log_error)
    found = entry(worker)
    assert found.message == "it went wrong"
    assert found.trace.startswith("Traceback (most recent call last):")
    assert found.trace.endswith("ZeroDivisionError: division by zero")


def test_a_record_goes_home_before_the_outcome(worker: Worker) -> None:
    worker.send(1, logs.log, "of no importance")
    assert worker.result() == (1, worker.process.pid)
    worker.send(2, logs.log_many, 3)
    assert worker.result() == (2, 3)
    assert [entry(worker).message for _ in range(3)] == ["0", "1", "2"]


def test_what_cannot_be_formatted_is_told_on_stderr(worker: Worker) -> None:
    worker.send(1, logs.log_badly)
    assert worker.result() == (1, "done")
    worker.send(2, logs.log_many, 1)
    assert entry(worker).message == "0"
    assert worker.result() == (2, 1)
    _, status, err = worker.last_words()
    assert status == 0
    assert "--- Logging error ---" in err
    assert "Message: '%d'" in err


def test_a_huge_record_is_cut(worker: Worker) -> None:
    worker.send(1, logs.log_huge, 10_000_000)
    assert entry(worker).message.endswith("(9991808 characters are left out here)")
    assert worker.result() == (1, 10_000_000)


def test_a_copy_that_a_job_forks_is_silent_here(worker: Worker) -> None:
    worker.send(1, logs.log_in_fork)
    assert entry(worker).message == "in the worker"
    assert worker.result() == (1, worker.process.pid)
    # It logs as any process in which nobody has configured it.
    _, status, err = worker.last_words()
    assert (status, err) == (0, "in the copy\n")


def test_records_of_threads_belong_to_the_job_that_runs(worker: Worker) -> None:
    worker.send(5, logs.log_many, 1)
    assert entry(worker).job == 5
    worker.send(6, logs.log_in_thread, "helper")
    found = entry(worker)
    assert (found.thread_name, found.job, found.attempt) == ("helper", 6, 1)
    worker.send(7, logs.log_in_thread_by_adapter)
    found = entry(worker)
    assert (found.name, found.job, found.attempt) == ("asyncpool.job", 7, 1)


def test_a_thread_that_outlives_its_job_belongs_to_it_if_it_says_so(
    worker: Worker,
) -> None:
    worker.send(1, logs.log_in_thread_late)
    worker.send(2, logs.let_it_log)
    found = [entry(worker), entry(worker)]
    assert [(e.message, e.job) for e in found] == [("by adapter", 1), ("by itself", 2)]


def test_signal_handlers_log_in_the_middle_of_a_record(worker: Worker) -> None:
    worker.send(1, logs.log_from_signals, 200)
    messages: list[str] = []
    while "the end" not in messages:
        messages.append(entry(worker).message)
    job, total = worker.result()
    assert (job, len(messages)) == (1, total)
    numbers = [message for message in messages if message.isdigit()]
    assert numbers == [str(number) for number in range(len(numbers))]
    assert messages.count("from a handler") >= 200


def test_exceptions_in_the_middle_of_a_record_break_nothing(worker: Worker) -> None:
    worker.send(1, logs.log_from_raising_signals, 100)
    worker.send(2, logs.log_as_job)
    while (found := entry(worker)).job == 1:
        assert found.message == "again " + "and again" * 100
    assert (found.job, found.message) == (2, "of a job")
    assert worker.result() == (1, 100)
    assert worker.result() == (2, None)


def test_the_pool_is_answered_while_a_job_logs_without_end(
    worker: Worker, door: Door
) -> None:
    worker.send(1, logs.log_without_end, door.path)
    worker.send(2, jobs.square, 2)
    door.visitor()
    worker.control.sendall(revoke_frame(2))
    frame = worker.heard(worker.control)
    while frame is not None and frame.kind is FrameKind.RECORD:
        frame = worker.heard(worker.control)
    assert frame is not None
    assert frame.kind is FrameKind.REVOKED


def test_the_import_leaves_no_trace(worker: Worker) -> None:
    worker.send(1, logs.loader)
    assert worker.result() == (1, (True, False, []))


def test_logging_that_was_there_before_is_seen_too(
    hire: Callable[..., Worker],
) -> None:
    worker = hire(logs.log_at_start)
    found = entry(worker)
    assert (found.message, found.job, found.attempt) == ("at the start", None, 0)
    worker.hello()
    worker.send(1, logs.handlers)
    assert worker.result() == (1, ["RecordHandler"])
