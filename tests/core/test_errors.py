"""Tests of asyncpool/_core/pickling/errors.py: what a job raises, on its way to the caller."""

from __future__ import annotations

import asyncio
import copyreg
import pickle
import traceback
from collections.abc import Callable
from typing import NoReturn

import pytest

from asyncpool._core.pickling.errors import format_error, load_error, pack_error
from asyncpool._core.pickling.out_of_band import ReceivedPickle
from asyncpool.errors import JobNotPicklableError, JobRaisedError, RemoteTraceback
from tests.core import specimens


def execute(job: Callable[[], object]) -> bytes:
    # Two frames like those of a worker, which nobody wants to see.
    try:
        run(job)
    except BaseException as error:  # noqa: BLE001 - as a worker does
        return pack_error(error, skip=2)
    raise AssertionError("the job raised nothing")


def run(job: Callable[[], object]) -> None:
    job()


def arrive(error: BaseException) -> BaseException:
    """Raise *error* in a job and return what its caller gets."""

    def job() -> NoReturn:
        raise error

    return load_error(execute(job))


def text_of(error: BaseException) -> str:
    assert isinstance(error.__cause__, RemoteTraceback)
    return error.__cause__.text


@pytest.mark.parametrize(
    "error",
    [
        ValueError("wrong"),
        ValueError(),
        KeyError("missing"),
        ZeroDivisionError("division by zero"),
        ExceptionGroup("both", [ValueError("one"), KeyError("two")]),
        StopAsyncIteration("over"),
        SyntaxError("bad", ("file.py", 3, 7, "x = = 1")),
        specimens.NeedsTwo("a", "b"),
        specimens.NeedsKeyword(code=3),
        specimens.MakesItsMessage("of that"),
        specimens.AddsDefaults("failed", 3),
        specimens.SaysItItself(code=3),
        specimens.Frozen("cold", 3),
        specimens.NoModule(missing="numpy"),
        specimens.HostileReduce("but simple", 17),
        specimens.HostileReduceThatExits("but simple", 17),
        specimens.HostileReduceThatLies("I am this"),
        ExceptionGroup("both", [specimens.NeedsTwo("a", "b"), KeyError("two")]),
    ],
    ids=lambda error: type(error).__qualname__,
)
def test_an_exception_arrives_as_itself(error: Exception) -> None:
    twin = arrive(error)
    assert type(twin) is type(error)
    assert twin is not error
    assert str(twin) == str(error)
    assert repr(twin.args) == repr(error.args)
    assert vars(twin) == vars(error)
    assert isinstance(twin.__cause__, RemoteTraceback)


def test_the_fields_of_system_errors_are_kept() -> None:
    for error in (
        FileNotFoundError(2, "no such file", "/a", None, "/b"),
        OSError(5, "i/o"),
        specimens.NoFile("/c"),
    ):
        twin = arrive(error)
        assert type(twin) is type(error)
        assert isinstance(twin, OSError)
        assert (twin.errno, twin.strerror) == (error.errno, error.strerror)
        assert (twin.filename, twin.filename2) == (error.filename, error.filename2)
        assert str(twin) == str(error)


def test_the_fields_of_decoding_errors_are_kept() -> None:
    for error in (
        UnicodeDecodeError("utf-8", b"caf\xe9", 3, 4, "bad byte"),
        specimens.BadText(position=3),
    ):
        twin = arrive(error)
        assert type(twin) is type(error)
        assert isinstance(twin, UnicodeDecodeError)
        assert (twin.encoding, twin.object, twin.reason) == (
            "utf-8",
            b"caf\xe9",
            "bad byte",
        )
        assert (twin.start, twin.end, str(twin)) == (3, 4, str(error))


def test_the_missing_module_of_an_import_error_is_kept() -> None:
    for error in (ImportError("no", name="numpy"), specimens.NoModule(missing="numpy")):
        twin = arrive(error)
        assert isinstance(twin, ImportError)
        assert twin.name == "numpy"


def test_notes_are_kept() -> None:
    for error in (ValueError("wrong"), specimens.NeedsTwo("a", "b")):
        error.add_note("row 17")
        twin = arrive(error)
        assert twin.__notes__ == ["row 17"]
        assert "row 17" in text_of(twin)


def test_attributes_are_kept() -> None:
    error = ValueError("wrong")
    error.row = 17  # type: ignore[attr-defined]
    assert vars(arrive(error)) == {"row": 17}


def test_a_class_that_is_not_importable_travels_by_value() -> None:
    class LocalError(Exception):
        def __init__(self, *, code: int) -> None:
            super().__init__(f"code {code}")
            self.code = code

    twin = arrive(LocalError(code=3))
    assert (type(twin).__qualname__, str(twin)) == (LocalError.__qualname__, "code 3")
    assert vars(twin) == {"code": 3}


def test_a_text_that_differs_at_each_look_is_no_obstacle() -> None:
    # The default repr of an object has its address.
    twin = arrive(ValueError(specimens.Counter(3)))
    assert type(twin) is ValueError
    assert twin.args[0].start == 3


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (specimens.HoldsALock("busy"), "busy"),
        (ValueError(specimens.LOCK), str(specimens.LOCK)),
        (specimens.HostileStr(specimens.LOCK), "<its __str__ raised RuntimeError>"),
        (specimens.HostileStrThatExits(), "<its __str__ raised SystemExit>"),
    ],
    ids=lambda item: type(item).__qualname__,
)
def test_what_cannot_be_pickled_is_named_and_quoted(
    error: Exception, text: str
) -> None:
    cls = type(error)
    twin = arrive(error)
    assert isinstance(twin, JobNotPicklableError)
    assert twin.name == f"{cls.__module__}.{cls.__qualname__}"
    assert (twin.text, twin.direction) == (text, "exception")
    assert str(twin) == f"the job raised {twin.name}, which cannot be pickled: {text}"
    assert cls.__qualname__ in text_of(twin)


def test_a_hostile_text_does_not_stop_what_can_be_pickled() -> None:
    twin = arrive(specimens.HostileStr("fine", 1))
    assert isinstance(twin, specimens.HostileStr)
    assert twin.args == ("fine", 1)
    assert "HostileStr" in text_of(twin)


@pytest.mark.parametrize("error", [specimens.Homesick, specimens.Changeling])
def test_what_cannot_be_unpickled_here_is_named_and_quoted(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def job() -> NoReturn:
        raise error("row 17\nrow 18: bad")

    payload = execute(job)
    monkeypatch.setitem(specimens.HOME, "here", False)
    twin = load_error(payload)
    assert isinstance(twin, JobNotPicklableError)
    assert twin.direction == "exception"
    assert twin.name == f"{error.__module__}.{error.__qualname__}"
    assert twin.text == "row 17\nrow 18: bad"
    assert "cannot be unpickled here" in str(twin)
    assert "row 18: bad" in text_of(twin)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"garbage",
        pickle.dumps(17),
        pickle.dumps((b"", "Boo: far")),
        pickle.dumps((1, 2, 3, 4)),
        pickle.dumps((b"", "text", "name", "message")),
        pickle.dumps((pickle.dumps(17), "text", "name", "message")),
        pickle.dumps(specimens.ExitsWhenLoaded()),
    ],
)
def test_a_broken_payload_is_the_jobs_own_failure(payload: bytes) -> None:
    twin = load_error(payload)
    assert isinstance(twin, JobNotPicklableError)
    assert "cannot be unpickled here" in str(twin)


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt("stop"),
        GeneratorExit(),
        StopIteration(7),
        asyncio.CancelledError("not yours"),
        BaseExceptionGroup("both", [SystemExit(1), ValueError("one")]),
    ],
    ids=lambda error: type(error).__qualname__,
)
def test_what_must_not_be_raised_in_a_caller_is_wrapped(error: BaseException) -> None:
    twin = arrive(error)
    assert type(twin) is JobRaisedError
    assert type(twin.exception) is type(error)
    assert repr(twin.exception.args) == repr(error.args)
    assert twin.__cause__ is twin.exception
    assert str(twin) == f"the job raised {twin.exception!r}"
    assert "in job" in text_of(twin.exception)


def test_the_exit_code_of_a_wrapped_system_exit_is_there() -> None:
    twin = arrive(SystemExit(3))
    assert isinstance(twin, JobRaisedError)
    assert isinstance(twin.exception, SystemExit)
    assert twin.exception.code == 3


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        FileNotFoundError(2, "no such file", "/a"),
        StopIteration(4),
        ImportError("no", name="it"),
    ],
)
def test_fields_are_kept_where_tblib_pickles_exceptions(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does in each program that imports Dask."""
    from tblib import pickling_support

    monkeypatch.setitem(
        copyreg.dispatch_table, type(error), pickling_support.pickle_exception
    )
    payload = pack_error(error, skip=0)
    twin = load_error(payload)
    found = twin.exception if isinstance(twin, JobRaisedError) else twin
    assert type(found) is type(error)
    for name in ("code", "value", "errno", "filename", "name"):
        assert getattr(found, name, None) == getattr(error, name, None)


def failing_job() -> float:
    zero = 0
    return 1 / zero  # the failing line


def test_the_traceback_shows_the_job_and_nothing_of_the_worker() -> None:
    text = text_of(load_error(execute(failing_job)))
    assert text.startswith("Traceback (most recent call last):\n")
    assert "return 1 / zero  # the failing line" in text
    assert text.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "in failing_job" in text
    assert "in execute" not in text
    assert "in run" not in text


def test_the_traceback_has_what_the_exception_came_from() -> None:
    def job() -> None:
        try:
            failing_job()
        except ZeroDivisionError as error:
            raise KeyError("missing") from error

    text = text_of(load_error(execute(job)))
    assert text.index("ZeroDivisionError") < text.index("direct cause")
    assert text.index("direct cause") < text.index("KeyError: 'missing'")


def test_more_frames_to_skip_than_there_are() -> None:
    error = arrive_unraised = ValueError("never raised")
    payload = pack_error(arrive_unraised, skip=2)
    assert text_of(load_error(payload)).strip() == f"ValueError: {error}"


def test_a_printed_exception_shows_the_remote_traceback() -> None:
    cause = load_error(execute(failing_job)).__cause__
    assert str(cause).startswith("\n\nTraceback (most recent call last):\n")
    assert "# the failing line" in str(cause)


def test_an_error_can_be_loaded_wherever_it_lies() -> None:
    def job() -> NoReturn:
        raise specimens.NeedsTwo("a", "b")

    view = memoryview(execute(job))
    for payload in (view, ReceivedPickle(view, []), ReceivedPickle(b"", [view])):
        error = load_error(payload)
        assert type(error) is specimens.NeedsTwo
        assert (error.left, error.right) == ("a", "b")
        assert "in job" in text_of(error)


def test_a_traceback_is_told_where_python_cannot_format_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may need a file, and there is no descriptor left."""

    def fail(*_: object) -> None:
        raise OSError("Too many open files")

    monkeypatch.setattr(traceback, "format_exception", fail)
    with pytest.raises(LookupError) as caught:
        run(lambda: {1: 2}[3])
    tb = caught.tb.tb_next
    assert tb is not None
    assert format_error(LookupError("nothing"), tb) == (
        "Traceback (most recent call last):\n"
        f'  File "{__file__}", line {tb.tb_lineno}, in run\n'
        f'  File "{__file__}", line {caught.tb.tb_lineno}, in <lambda>\n'
        "LookupError: nothing\n"
    )
