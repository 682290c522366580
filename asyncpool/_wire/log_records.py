"""Log records of asyncpool: their kinds, those of workers, and how a worker sends one.

A kind has a name, a level and a text; whoever logs it gives the data, from which the text is made
too.  This module does not import ``logging``, which costs a worker 2 MB: whoever logs has a logger.

Records of asyncpool's own code in a worker get its pool, slot, generation and pid on the way.
The service believes a worker none of the other ids: what a job makes up rings no alert of theirs.
``docs/log-records.md`` tells what each of these means, and what to do about it.

On the wire a record is JSON of bounded size.  A worker may log whatever it likes, and the pool does
not trust what it sends.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from functools import partial

from asyncpool._wire.text import indent
from asyncpool.errors import ProtocolError

TYPE_CHECKING = False  # see _wire/records.py

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


class LogMessage:
    """One kind of record; ``docs/log-records.md`` has a row for each.

    Attributes:
        level: Its level.
        text: Its text, with the names of values, as in ``"%(pool)s is closed"``.
        id: What a filter or an alert finds it by, as the attribute ``message_id``.
    """

    def __init__(self, level: int, text: str) -> None:
        self.level, self.text, self.id = level, text, ""

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
        code, line = caller.f_code, caller.f_lineno
        path, by, of = code.co_filename, code.co_name, logger.name
        args = ({**extra, **words},) if extra or words else ()
        seen = None if error is None else (type(error), error, error.__traceback__)
        more, stacks = {"message_id": self.id, **extra}, indent(stack) or None
        try:
            record = logger.makeRecord(
                of, self.level, path, line, self.text, args, seen, by, more, stacks
            )
            record.exc_text = indent(trace) or None
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


# By the levels of logging.
debug, info, warning, error = (partial(LogMessage, it) for it in (10, 20, 30, 40))


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


# A socket of Linux takes a payload of this size as a whole or not at all.  So if something
# interrupts a worker while it sends a record, it cannot leave half of it behind.
MAX_RECORD = 32_768

# In a record of so many bytes no text is worth cutting, and to look at each costs 3 us.
_SMALL = 4096

# The attributes of a record that are sent, by the names that ``logging`` has for them.
#
# Numbers, with the highest that there may be; none is negative.  Handlers make dates of the time.
# What comes from no job has the job 0, and the attempt 0.
NUMBERS = {
    "levelno": 1000,
    "lineno": 2**63,
    "process": 2**63,
    "thread": 2**63,
    "job_id": 2**63,
    "attempt": 2**63,
    "created": 1e11,
}
# Texts, with how many characters of each are left in a large record: the first ones, or the last ones
# where there is a minus.  The message, the last of them, says how much of it is missing.
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
    "msg": 8192,
}

# The limits of extra fields: how many there are, how long their names, how large their values.
_MAX_FIELDS = 32
_MAX_NAME = 200
_MAX_TEXT = 1000
_MAX_NUMBER = 1e18

# How much is left of a longer text, so that there is room to say that it was cut.
_CUT_TEXT = 900

# Fields of a record that is too large shrink to this part before its other texts shrink: a
# traceback matters more.
_FIELDS_FIRST = 1 / 10


def pack_record(given: Mapping[str, Any], fields: dict[str, Any]) -> bytes:
    """Return the payload of a ``RECORD`` frame, in which texts that are too long are cut.

    Args:
        given: The attributes of the record, with the arguments in ``msg``.
        fields: What was given as *extra*, as :func:`plain_fields` returns it.
    """
    numbers = [
        it if 0 <= (it := given.get(name) or 0) <= most else max(0, min(it, most))
        for name, most in NUMBERS.items()
    ]
    texts = [str(given.get(name) or "") for name in TEXTS]
    if sum(map(len, texts)) <= _SMALL:
        data = _dump(numbers, texts, fields)
        if len(data) <= _SMALL:
            return data  # nearly always
    share = 1.0
    while True:
        # Short fields stay as they are, so the room that they leave is for the long ones.
        longest, rest = int(_MAX_TEXT * share), min(1.0, share / _FIELDS_FIRST)
        limits = [int(most * rest) for most in TEXTS.values()]
        parts = [
            text[most:] if most < 0 else text[:most]
            for text, most in zip(texts, limits, strict=True)
        ]
        parts[-1] = _cut(texts[-1], limits[-1], limits[-1])
        shorter = {
            name: _cut(value, longest) if isinstance(value, str) else value
            for name, value in fields.items()
            if len(name) <= _MAX_NAME * rest
        }
        data = _dump(numbers, parts, shorter)
        if len(data) <= MAX_RECORD:
            return data
        # Somewhat less than the part that fits, since not all of a record shrinks.
        share *= 0.95 * MAX_RECORD / len(data)


def _dump(*values: object) -> bytes:
    # A character that UTF-8 cannot encode becomes an escape, which JSON has as well.
    return json.dumps(values, ensure_ascii=False).encode(errors="backslashreplace")


def read_record(payload: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the attributes and the extra fields of a record from the payload of its frame.

    Raises:
        ProtocolError: If :func:`pack_record` returns no such payload.
    """
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        numbers, texts, fields = json.loads(payload)
        found = dict(zip(NUMBERS, numbers, strict=True))
        found |= zip(TEXTS, texts, strict=True)
        if (
            len(payload) <= MAX_RECORD
            and all(
                isinstance(found[name], (int, type(most))) and 0 <= found[name] <= most
                for name, most in NUMBERS.items()
            )
            and all(isinstance(text, str) for text in texts)
            and plain_fields(fields.items()) == fields
        ):
            return found, fields
    raise ProtocolError("a record of a logger cannot be read")


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
            found[name] = value if _is_plain(value) else _plain(value)
    return found


def _is_plain(value: Any) -> bool:
    cls = type(value)
    if cls is bool or cls is int or cls is float:  # a metaclass may have no hash
        # This is also False for numbers that are not finite, which JSON does not have.
        return bool(abs(value) < _MAX_NUMBER)
    return value is None or (type(value) is str and len(value) <= _MAX_TEXT)


def _plain(value: Any) -> Any:
    numpy: Any = sys.modules.get("numpy")
    is_scalar = numpy is not None and isinstance(value, numpy.generic)
    return value.item() if is_scalar and _is_plain(value.item()) else _text_of(value)


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
