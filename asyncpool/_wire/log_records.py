"""Log records of asyncpool: their kinds, those of workers, and how a worker sends one.

A kind has a name, a level and a text; whoever logs it gives the data, from which the text is made
too.  This module does not import ``logging``, which costs a worker 2 MB: whoever logs has a logger.

Records of asyncpool's own code in a worker get its pool, slot, generation and pid on the way.
The service believes a worker none of the other ids: what a job makes up rings no alert of theirs.
``docs/log-records.md`` tells what each of these means, and what to do about it.

On the wire a record is JSON of bounded size, and texts that are too long are cut.  A worker may log
whatever it likes, and the pool does not trust what it sends.
"""

from __future__ import annotations

import json
import sys
from functools import partial

from asyncpool._wire.records import Record
from asyncpool.errors import ProtocolError

TYPE_CHECKING = False  # see _wire/records.py

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

# The levels of logging.
DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40


class LogMessage:
    """One kind of record; ``docs/log-records.md`` has a row for each.

    Attributes:
        level: Its level.
        text: Its text, with the names of values, as in ``"%(pool)s is closed"``.
        id: What a filter or an alert finds it by, as the attribute ``message_id``.
    """

    def __init__(self, level: int, text: str) -> None:
        self.level = level
        self.text = text
        self.id = ""

    def log(
        self,
        logger: Any,
        extra: Mapping[str, object],
        *,
        error: BaseException | None = None,
        trace: str = "",
        stack: str = "",
        **words: Any,
    ) -> None:
        """Log one record in the name of the caller; nothing is done if its level is off.

        Whatever a handler or a filter of the user's raises is ignored: it must not hurt the pool.

        Args:
            logger: A logger of ``logging``, whose class workers must not have to import.
            extra: The attributes of the record: numbers, short texts, and ``None``.
            error: The exception that the record is about; its traceback is shown.
            trace: A traceback as text, in place of *error*.
            stack: Stacks of a worker.
            words: What only the text needs.
        """
        if not logger.isEnabledFor(self.level):
            return
        # What the logger's findCaller() would find, 0.7 us sooner.
        caller = sys._getframe(1)  # noqa: SLF001
        data = {**extra, **words}
        seen = None if error is None else (type(error), error, error.__traceback__)
        try:
            record = logger.makeRecord(
                logger.name,
                self.level,
                caller.f_code.co_filename,
                caller.f_lineno,
                self.text,
                (data,) if data else (),
                seen,
                caller.f_code.co_name,
                {"message_id": self.id, **extra},
                stack or None,
            )
            record.exc_text = trace or None
            logger.handle(record)
        except Exception:  # noqa: BLE001, S110 - there is no other place to tell of it
            pass


def give_ids(module: Mapping[str, object]) -> frozenset[str]:
    """Give the messages of a module their ids, such as ``pool-closed`` to ``POOL_CLOSED``.

    Alerts go by the ids, so whoever renames a message breaks somebody's alert.

    Returns:
        The ids.
    """
    messages = {name: it for name, it in module.items() if isinstance(it, LogMessage)}
    for name, message in messages.items():
        message.id = name.lower().replace("_", "-")
    return frozenset(message.id for message in messages.values())


debug = partial(LogMessage, DEBUG)
info = partial(LogMessage, INFO)
warning = partial(LogMessage, WARNING)
error = partial(LogMessage, ERROR)


# Of a pool.

JOB_BLOCKED_LOOP = warning(
    "%(who)s ran for %(seconds).3g s by the clock %(where)s, and the event loop of its worker "
    "ran nothing else meanwhile: it computed, or blocked, or the worker had to wait for a "
    "CPU%(hint)s"
)

# Of a server.

RETIRE_CALLED = info("this worker retires: %(reason)s")
REPLACEMENT_CALLED = info("this worker asks for a replacement: %(reason)s")
CONNECTIONS_CUT_OFF = warning(
    "%(open)d of %(opened)d connections had not ended within the %(limit)s of %(seconds)g s, "
    "and are cut off%(who)s"
)
SERVE_CANCELLED = warning(
    "what this worker serves had not ended within the %(limit)s of %(seconds)g s, and is "
    "cancelled"
)
VALUE_UNREADABLE = error("this worker cannot read %(what)s and drops it")
NOT_ACCEPTED = warning("no connection can be accepted now: %(why)s")
NOT_HANDED_ON = warning(
    "no connection can be handed on to other workers any more: %(why)s; each of them is "
    "closed behind its next response, or after %(seconds)g s without a request"
)
CONNECTION_FAILED = debug("a connection failed: %(why)s")
REQUEST_TIMED_OUT = warning(
    "%(method)s %(path)s%(who)s %(why)s, and is %(done)s, %(seconds).1f s after it came"
)
WORKER_BUSY = warning(
    "this worker takes no requests now: %(why)s; new connections go to others that can"
)
WORKER_FREE = info("this worker takes requests again, after %(seconds).1f s")
LOOKS_LIKE_FACTORY = warning(
    "%(function)s takes no arguments, and is called to make the application; say --factory "
    "if that is right"
)

IDS = give_ids(globals())


# A socket of Linux takes an entry of this size as a whole or not at all.  So if
# something interrupts a worker while it sends an entry, it cannot leave half of it
# behind.
MAX_ENTRY = 32_768

MAX_LEVEL = 1000

# In an entry of so many bytes no text is worth cutting, and to look at each costs 3 us.
_SMALL = 4096

# How many characters a larger one keeps of each text: the first ones, or the last ones where there
# is a minus.  A message is cut too, but says how much of it is missing.
TEXTS = {
    "name": 200,
    "levelname": 200,
    "pathname": -500,
    "funcName": 200,
    "processName": 200,
    "threadName": 200,
    "taskName": 200,
    "exc_text": -12_288,
    "stack_info": -4096,
}
_MAX_MESSAGE = 8192

# The limits of fields: how many there are, how long their names, how large their values.
_MAX_FIELDS = 32
_MAX_NAME = 200
_MAX_TEXT = 1000
_MAX_NUMBER = 1e18

# How much is left of a longer text, so that there is room to say that it was cut.
_CUT_TEXT = 900

# Fields of an entry that is too large shrink to this part before its other texts shrink: a
# traceback matters more.
_FIELDS_FIRST = 1 / 10

# The latest time, for handlers that make dates of it.
_NEVER = 1e11


class LogEntry(Record):
    """One record of a logger, with the names that ``logging`` has for its attributes.

    Attributes:
        message: Its message, with the arguments in it.
        job: The job that it comes from; ``None`` if it comes from no job.
        attempt: The attempt; 0 if it comes from no job.
        fields: The values that were given as *extra*.
    """

    name: str
    levelno: int
    levelname: str
    message: str
    pathname: str
    lineno: int
    funcName: str  # noqa: N815 - logging's name, as below
    created: float
    process: int
    processName: str  # noqa: N815
    thread: int
    threadName: str  # noqa: N815
    taskName: str  # noqa: N815
    exc_text: str
    stack_info: str
    job: int | None
    attempt: int
    fields: dict[str, Any]

    def pack(self) -> bytes:
        """Return the payload of a ``RECORD`` frame."""
        parts = *self, *self.fields.values()
        least = sum(len(part) for part in parts if isinstance(part, str))
        if least <= _SMALL and 0 <= self.levelno <= MAX_LEVEL:
            data = _dump(self)
            if len(data) <= _SMALL:
                return data  # nearly always
        share = 1.0
        while len(data := _dump(self._within(share))) > MAX_ENTRY:
            # Somewhat less than the part that fits, since not all of an entry shrinks.
            share *= 0.95 * MAX_ENTRY / len(data)
        return data

    def _within(self, share: float) -> LogEntry:
        """Return the entry with its fields cut to this share of the longest that there may be.

        Short fields stay as they are, so the room that they leave is for the long ones.
        """
        longest, share = int(_MAX_TEXT * share), min(1.0, share / _FIELDS_FIRST)
        fields = {
            name: _cut(value, longest) if isinstance(value, str) else value
            for name, value in self.fields.items()
            if len(name) <= _MAX_NAME * share
        }
        texts: dict[str, Any] = {}
        for name, limit in TEXTS.items():
            text, most = getattr(self, name), int(limit * share)
            texts[name] = text[most:] if most < 0 else text[:most]
        return self._replace(
            levelno=max(0, min(self.levelno, MAX_LEVEL)),
            message=_cut(self.message, int(_MAX_MESSAGE * share), _MAX_MESSAGE),
            fields=fields,
            **texts,
        )

    @classmethod
    def unpack(cls, payload: bytes) -> LogEntry:
        """Read the payload of a ``RECORD`` frame.

        Raises:
            ProtocolError: If it is no such payload.
        """
        try:
            entry = cls(*json.loads(payload))
            _check(entry, len(payload))
        except (ValueError, TypeError, RecursionError) as error:
            raise ProtocolError("a record of a logger cannot be read") from error
        return entry


def plain_fields(fields: Iterable[tuple[str, object]]) -> dict[str, Any]:
    """Return *fields* as plain and small values, a bounded number of them.

    Numbers, short texts, bools and ``None`` stay as they are, and so do values that
    this function has returned before.  Anything else becomes a text.
    """
    found: dict[str, Any] = {}
    for name, value in fields:
        if len(found) == _MAX_FIELDS:
            break
        if len(name) <= _MAX_NAME:
            found[name] = value if _is_plain(value) else _text_of(value)
    return found


def _is_plain(value: object) -> bool:
    cls = type(value)
    if value is None or cls is bool:
        return True
    if cls is str:
        return len(value) <= _MAX_TEXT  # type: ignore[arg-type]
    if cls is int or cls is float:
        # This is also False for numbers that are not finite, which JSON does not have.
        return abs(value) < _MAX_NUMBER  # type: ignore[arg-type]
    return False


def _text_of(value: object) -> str:
    try:
        # str() would return the same for bytes, but warns if Python was told to warn
        # about that.
        text = repr(value) if isinstance(value, bytes) else str(value)
    except Exception as error:  # noqa: BLE001 - it is the application's code
        text = f"a {type(value).__name__} without a text: {type(error).__name__}"
    return _cut(text, _MAX_TEXT)


def _cut(text: str, most: int, left: int = _CUT_TEXT) -> str:
    """Return a text of more than *most* characters with no more than *left* of them."""
    if len(text) <= most:
        return text
    left = min(most, left)
    return f"{text[:left]}... ({len(text) - left} characters are left out here)"


def _dump(entry: LogEntry) -> bytes:
    # A character that UTF-8 cannot encode becomes an escape, which JSON has as well.
    return json.dumps(entry, ensure_ascii=False).encode(errors="backslashreplace")


def _check(entry: LogEntry, size: int) -> None:
    texts = [entry.message, *(getattr(entry, name) for name in TEXTS)]
    numbers = [entry.levelno, entry.lineno, entry.process, entry.thread, entry.attempt]
    if entry.job is not None:
        numbers.append(entry.job)
    if not (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int) for number in numbers)
        and isinstance(entry.fields, dict)
    ):
        raise TypeError("a field is of the wrong type")
    if not 0 <= entry.levelno <= MAX_LEVEL or not 0 <= entry.created < _NEVER:
        raise ValueError("a field is out of range")
    if size > MAX_ENTRY or plain_fields(entry.fields.items()) != entry.fields:
        raise ValueError("there is more than there may be")
