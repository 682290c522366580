"""Turn jobs, their results and what they raise into bytes, and back.

The fast serializer goes first.  Some functions and objects it cannot name (lambdas,
closures), and others have a name that the other side cannot find (such as those of
``__main__``, see ``by_value.py``).  These travel by value, through cloudpickle.  A
failure, on either side, always belongs to the one job whose data it is.

Exceptions need more care.  The default way to copy an exception is ``cls(*args)``.  It fails for
every class whose ``__init__`` takes other arguments than ``args``.  For some classes it works, but
gives another message.  So a worker makes the copy itself, and compares it.  If the copy is wrong,
the worker packs the exception so that it is rebuilt without its ``__init__``. An exception that
cannot be sent at all is replaced by an error that names it and carries its text.

A stream is written and read in pieces of about 64 KB, as pickle frames it.  Between two pieces, a
thread that does this can let others run.

A pool chooses its serializer once, and each ``Function`` refers to it.  The classes here are for
pickle; ``_core/data_only.py`` and ``_wire/schemas.py`` derive those of data-only pools.  Their
attributes are plain functions, so that a call costs no more than one of a global function.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
import traceback
from contextlib import suppress
from functools import cache, partial
from io import BytesIO, TextIOWrapper
from itertools import islice
from sys import modules
from types import BuiltinFunctionType, FunctionType, MethodType

from asyncpool._wire import scripts
from asyncpool._wire.buffers import (
    HEAVY,
    LARGE,
    OutOfBandPickle,
    OverLimitError,
    ReceivedPickle,
)
from asyncpool._wire.records import Record
from asyncpool._wire.text import printable_block, printable_text
from asyncpool.errors import (
    HookError,
    JobNotPicklableError,
    JobRaisedError,
    RemoteTraceback,
)

TYPE_CHECKING = False  # see _wire/records.py

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Any, Literal, NoReturn

    from asyncpool._wire.buffers import Packed, Pause, Payload, Piece

    Reducers = dict[type, Callable[[Any], Any]]
    Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
    Direction = Literal["arguments", "result", "exception", "details"]

# What the name of the main module looks like inside a pickle.  A string that happens to
# contain it only costs a second pickling.
MAIN = b"__main__"

# How many bytes are copied at once while the thread holds the GIL: in fresh memory that
# takes 0.2 ms.
_CHUNK = 262_144

# Types whose values hold no other object, and never change; and these with texts and bytes.
SCALARS: frozenset[type] = frozenset((int, float, bool, type(None)))
FLAT: frozenset[type] = SCALARS | {str, bytes}

# Parts of the errors for objects that only descriptors, or the start of a process, can
# pass on.
_ONLY_AT_A_START = (
    "through inheritance",
    "a descriptor of this process",
    "'socket' object",
    "'mmap.mmap' object",
)
_HINT = "; workers can have it from their start on, in the pool's initargs"

# What is told if a worker misses a module that this program has.
_ONLY_HERE = (
    "This program has {!r}, which no folder of the worker's sys.path has: put its folder, or that "
    "of its package, there before the pool starts (for pytest's --import-mode=importlib: by "
    "`pythonpath` in its configuration)"
)


class Subject(Record):
    """What the error for something is about that cannot be pickled or unpickled.

    Attributes:
        text: How the text of the error names it.
        direction: As the error has it.
        name: How the error names it; ``None`` for as the text does.
    """

    text: str
    direction: Direction = "arguments"
    name: str | None = None


CALL, RESULT = Subject("the call"), Subject("the job's result", "result", "")
DETAILS = Subject("the details of a heartbeat", "details", "")


def dump(
    value: object,
    *,
    limit: int | None = None,
    pause: Pause | None = None,
    watch: Callable[[Any], None] | None = None,
    in_band: bool = False,
    others: Callable[[], Reducers] | None = None,
) -> OutOfBandPickle:
    """Pickle *value*, by value where the other process would not find a reference.

    Args:
        value: Anything.
        limit: The most bytes that the stream may have.
        pause: Called between the pieces of the stream.
        watch: Called with each object of a user's class before it is pickled; may
            raise a :class:`OverLimitError`.
        in_band: Whether large buffers go into the stream, like everything else.
        others: Called for each try.  Returns how to reduce objects that pickle does
            not know.

    Raises:
        OverLimitError: If the stream gets longer than *limit*.
        Exception: Any that the value's own methods raise, or the serializer.
    """

    def write(pickler: Any, value: object) -> tuple[list[bytes], list[memoryview]]:
        writer = _Writer(limit, pause, without)
        buffers: list[memoryview] = []
        keep = None if in_band else keep_large(buffers)
        made = pickler(writer, 5, buffer_callback=keep)
        if watch is not None and pickler is not pickle.Pickler:
            made.watch = watch
        teach(made, taught)
        made.dump(value)
        return writer.pieces, buffers

    try:
        if not scripts.is_local(value):
            taught, without = others and others(), MAIN
            fast = pickle.Pickler if watch is None else _Watched
            return OutOfBandPickle(*write(fast, value))
    except OverLimitError:
        raise
    except Exception:  # noqa: S110 - by value, then
        pass
    taught, without = others and others(), b""
    from asyncpool._wire.by_value import GlobalsPickler  # noqa: PLC0415 - workers need none

    return OutOfBandPickle(
        *GlobalsPickler(write, limit, pause).pack(value, warn=not in_band)
    )


def dumps_call(value: object, others: Callable[[], Reducers] | None = None) -> bytes:
    """Return *value* pickled for a worker, in one piece; see :func:`dump`."""
    return b"".join(dump(value, in_band=True, others=others).pieces)


def keep_large(buffers: list[memoryview]) -> Callable[[pickle.PickleBuffer], bool]:
    """Return a pickler's callback that keeps large buffers out of the stream."""

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if len(view) < LARGE:
            return True
        buffers.append(view)
        return False

    return keep


def loads(payload: Payload, *, pause: Pause | None = None) -> Any:
    """Load the object from *payload*.

    Args:
        payload: A stream, or a pickle with its buffers.
        pause: Called between the pieces of the stream.

    Raises:
        BaseException: Any that unpickling raises.
    """
    if not isinstance(payload, ReceivedPickle):
        payload = ReceivedPickle(payload, [])
    if pause is None:
        return pickle.loads(payload.stream, buffers=payload.buffers)
    reader: Any = _Reader(payload.stream, pause)
    return pickle.Unpickler(reader, buffers=payload.buffers).load()


def dumps(
    value: object, buffers: list[memoryview] | None = None, *, rebuilt: bool = False
) -> bytes:
    """Pickle what a worker sends, by value where the pool would not find a reference.

    Args:
        value: Anything.
        buffers: An empty list for large buffers; without it they are in the pickle.
        rebuilt: Whether exceptions are rebuilt without their ``__init__``.

    Raises:
        Exception: Any that the value's own methods raise, or the serializer.
    """
    keep = None if buffers is None else keep_large(buffers)
    try:
        # What teach() knows; not a function, whose call would cost 35 ns for each job.
        if rebuilt or ARRAYS in modules or CONNECTIONS in modules or FRAMES in modules:
            data = _dumps_with(pickle.Pickler, value, keep, rebuilt)
        else:
            data = pickle.dumps(value, 5, buffer_callback=keep)  # faster by 1.5 us
    except Exception:
        data = MAIN
    if data.find(MAIN) < 0:  # faster than "in"
        return data
    if buffers:
        buffers.clear()
    from asyncpool._wire.by_value import ResultPickler  # noqa: PLC0415 - it takes 20 ms

    return _dumps_with(ResultPickler, value, keep, rebuilt)


def _dumps_with(base: Any, value: object, keep: Any, rebuilt: bool) -> bytes:  # noqa: FBT001
    file = BytesIO()
    pickler = (_rebuilding(base) if rebuilt else base)(file, 5, buffer_callback=keep)
    teach(pickler)
    pickler.dump(value)
    return file.getvalue()


class _Watched(pickle.Pickler):
    """Calls ``watch`` with each object of a user's class, which takes 0.2 us."""

    watch: Any = None

    def reducer_override(self, value: object) -> Any:
        self.watch(value)
        return NotImplemented


class _Writer:
    """A file for a pickler, which writes a frame when it has 64 KB of it.

    A longer piece is the content of one bytes object, or the like.
    """

    def __init__(self, limit: int | None, pause: Pause | None, without: bytes) -> None:
        self.pieces: list[bytes] = []
        self._room, self._pause, self._without = limit, pause, without

    def write(self, data: bytes | bytearray | pickle.PickleBuffer) -> None:
        # A PickleBuffer is a large buffer that stays in the stream.
        piece = data.raw() if isinstance(data, pickle.PickleBuffer) else data
        if self._room is not None:
            self._room -= len(piece)
            if self._room < 0:
                raise OverLimitError
        if type(piece) is bytes:
            self._add(piece)
            return
        for start in range(0, len(piece), _CHUNK):  # memory that can change is copied
            self._add(bytes(memoryview(piece)[start : start + _CHUNK]))

    def _add(self, piece: bytes) -> None:
        if self._without:
            # It may only look like a frame; but to search 64 MB of a user's data takes 6 ms.
            short = len(piece) <= HEAVY or not self.pieces
            # A frame ends between two names, so that none is cut.
            if (short or piece[:1] == pickle.FRAME) and self._without in piece:
                raise pickle.PicklingError("the other process has another __main__")
        self.pieces.append(piece)
        if self._pause is not None:
            self._pause()


class _Reader:
    """A file for an unpickler, which reads a frame of 64 KB at a time.

    Each piece is a copy.  So another process that can still write to the memory cannot
    change a piece while it is unpickled.
    """

    def __init__(self, stream: Piece, pause: Pause) -> None:
        self._stream, self._pause = memoryview(stream), pause
        self._at = 0

    def read(self, size: int) -> bytes:
        self._pause()
        start, self._at = self._at, self._at + size
        return bytes(self._stream[start : self._at])

    def readinto(self, target: memoryview) -> int:
        """Read an object that is too large for a frame: one long bytes object."""
        source = self._stream[self._at : self._at + len(target)]
        self._at += len(target)
        for start in range(0, len(source), _CHUNK):
            self._pause()
            chunk = source[start : start + _CHUNK]
            target[start : start + len(chunk)] = chunk
        return len(source)

    # Only protocols that asyncpool does not write need it.
    def readline(self) -> bytes:
        raise pickle.UnpicklingError("the stream is malformed")


# Jobs and their results.


def pack_job(
    function: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    number: int = 0,
    limit: int | None = None,
    pause: Pause | None = None,
) -> Packed:
    """Return what a ``JOB`` frame carries, or what travels beside it.

    Args:
        function: What to call.
        args: Its arguments.
        kwargs: Its keyword arguments.
        number: The number by which the worker knows the function, or 0 to send the
            function along.
        limit: The most bytes that the pickle may have, not counting large buffers.
        pause: Called now and then while a large object is pickled.

    Raises:
        OverLimitError: If *limit* is too low.
        JobNotPicklableError: If a part cannot be pickled.  The error names the
            part.
    """
    try:
        # Without a limit, pickling is faster by 1.1 us, which is a tenth of a short
        # job.
        if number and is_flat(args) and is_flat(kwargs.values()):
            # There are no classes, so neither reducers nor __main__ matter.
            return pickle.dumps((args, kwargs), 5)
        call = (args, kwargs) if number else (function, args, kwargs)
        watch = None
        if limit is not None:
            parts = (function, *args, *kwargs.values())[number > 0 :]
            watch = _look_for_large(parts, limit)
        pickled = dump(call, limit=limit, pause=pause, watch=watch)
    except OverLimitError:
        raise
    except Exception as error:
        named = [("fn", function), *((f"args[{at}]", it) for at, it in enumerate(args))]
        named += [(f"kwargs[{key!r}]", value) for key, value in kwargs.items()]
        attempt = partial(dump, limit=limit, pause=pause)
        refuse(error, named, attempt, hint=_HINT, when=_ONLY_AT_A_START)
    return pickled if pickled.areas else pickled.payload


def load_job(payload: Payload, function: Callable[..., Any] | None = None) -> Call:
    """Read what came with a ``JOB`` frame, which must come from the pool.

    Args:
        payload: The payload, with its buffers.
        function: What to call, unless the function came along.

    Raises:
        BaseException: Any that unpickling the parts raises.
    """
    call = pickle.loads(payload) if type(payload) is bytes else loads(payload)
    return call if function is None else (function, *call)


def pack_value(value: object, limit: int | None = None) -> Packed:
    """Return what a ``VALUE`` frame carries, or what travels beside it.

    Raises:
        JobNotPicklableError: If *value* cannot be pickled, or has more than *limit* bytes.
    """
    try:
        if type(value) in SCALARS:
            data: Packed = pickle.dumps(value, 5)
        elif type(value) is bytes and len(value) > HEAVY:
            data = dump(value)  # which does not copy it
        else:
            buffers: list[memoryview] = []
            data = dumps(value, buffers)
            if buffers or len(data) > HEAVY:
                data = OutOfBandPickle([data], buffers)
    except Exception as error:
        name = type(value).__qualname__
        is_generator = name in {"generator", "async_generator"}
        hint = "; stream() yields what it yields" if is_generator else ""
        about = Subject(f"{RESULT.text}, of type {name},", "result", name)
        parts = [("result", value)]
        refuse(error, parts, lambda it: dumps(it, []), about, hint=hint)
    if limit is not None and len(data) > limit:
        raise too_large(len(data), limit, RESULT)
    return data


def load_value(
    payload: Payload, pause: Pause | None = None, about: Subject = RESULT
) -> Any:
    """Read what came with a ``VALUE`` frame.

    Args:
        payload: The payload, with its buffers.
        pause: Called now and then while a large object is unpickled.
        about: What errors are about.

    Raises:
        JobNotPicklableError: If the value cannot be unpickled here.
    """
    try:
        if pause is None and type(payload) is bytes:
            return pickle.loads(payload)
        return loads(payload, pause=pause)
    except BaseException as error:  # what is unpickled may raise anything
        raise unpicklable(error, about, verb=_UNPICKLED) from error


def is_flat(values: Iterable[Any]) -> bool:
    """Tell whether it is certain, without pickling them, that *values* are small when pickled."""
    room = LARGE
    for value in values:
        cls = type(value)
        if cls is int:
            room -= 9 + value.bit_length()  # eight times what it needs: few are long
        elif cls is str or cls is bytes:
            room -= 9 + len(value)
        elif cls in SCALARS:
            room -= 9
        else:
            return False
    return room >= 0


# How many parts are tried to find one that cannot be pickled.
_MOST_TRIES = 300

# What pickle meets in objects of these types.
_CALLABLES = (FunctionType, MethodType, BuiltinFunctionType, partial)
_PARTS = ("__defaults__", "__kwdefaults__", "__self__", "func", "args", "keywords")


def refuse(
    error: Exception,
    parts: Iterable[tuple[str, object]],
    attempt: Callable[[object], object],
    about: Subject = CALL,
    *,
    kind: str = "",
    hint: str = "",
    when: Iterable[str] = ("",),
) -> NoReturn:
    """Say what makes it impossible to pickle something, and where in it that is.

    Args:
        error: What pickling it has raised.
        parts: Its parts, each with its name.
        attempt: Pickles one.
        about: What it is.  Without a name there the error is about the part, if that is known.
        kind: What precedes the part in the text.
        hint: Ends the text if the reason contains one of *when*.
        when: Parts of reasons.

    Raises:
        JobNotPicklableError: In any case.
    """
    part = path = ""
    tried: dict[int, object] = {}
    todo = iter(parts)
    with suppress(Exception):  # of the objects' own methods, or there are no more parts
        # They come as pickle meets them: none that is behind the culprit is pickled for this.
        while len(tried) < _MOST_TRIES:
            step, value = next(todo)
            if type(value) in FLAT or id(value) in tried:
                continue
            tried[id(value)] = value
            try:
                attempt(value)
            except OverLimitError:
                pass  # what is behind the limit has not been reached
            except Exception as own:
                error, path = own, path + step
                part = part or path
                # The text of the former says all; the latter, which cloudpickle wraps, is no
                # single object's.
                if {type(own), type(own.__cause__)} & {
                    scripts.GlobalError,
                    RecursionError,
                }:
                    break
                todo = _parts_of(value)
    if about.name is None:
        name = part or about.text
        about = Subject(kind + name, about.direction, name)
    where = "" if path == part else f" - at `{path}`"
    if any(text in describe(error) for text in when):
        where += hint
    try:
        raise unpicklable(error, about, hint=where) from error
    finally:
        del error  # no cycle of a traceback and its frame


def _parts_of(whole: Any) -> Iterator[tuple[str, object]]:
    """Yield what pickle meets in *whole*, each with its path from there."""
    if type(whole) is FunctionType:
        names = whole.__code__.co_freevars
        for name, cell in zip(names, whole.__closure__ or (), strict=True):
            yield f".<closure>.{name}", cell.cell_contents
    if isinstance(whole, _CALLABLES):
        yield from ((f".{name}", getattr(whole, name, None)) for name in _PARTS)
    elif isinstance(whole, list | tuple):
        yield from ((f"[{at}]", it) for at, it in enumerate(whole))
    elif isinstance(whole, dict):
        yield from ((f"[{key!r:.100}]", it) for key, it in whole.items())
    # An object may leave out attributes, so they are what its class has pickled.
    state = (*whole.__reduce_ex__(5), None)[2]
    for fields in state if type(state) is tuple else (state,):
        if type(fields) is dict:
            yield from ((f".{name}", it) for name, it in fields.items())


def unpicklable(
    error: BaseException,
    about: Subject = CALL,
    *,
    hint: str = "",
    verb: str = "pickled",
) -> JobNotPicklableError:
    """Return the error for a call, or for something else, whose pickling has raised *error*.

    Args:
        error: What pickling it has raised.
        about: What it is.
        hint: What the text ends with.
        verb: What cannot be done, if that is something else.
    """
    text = f"{about.text} cannot be {verb}: {describe(error)}{hint}"
    refusal = _refusal(text, about)
    refusal.__cause__ = error
    return refusal


_UNPICKLED = "unpickled here"

# Returns the error for a result whose unpickling has raised the argument.
unloadable = partial(unpicklable, about=RESULT, verb=_UNPICKLED)


def too_large(
    size: int, limit: int, about: Subject = CALL, how: str = "when pickled"
) -> JobNotPicklableError:
    """Return the error for a call, or for something else, that has more bytes than *limit*."""
    text = f"{about.text} has {size} bytes {how}, and max_message_size is {limit}"
    return _refusal(text, about)


def _refusal(text: str, about: Subject) -> JobNotPicklableError:
    name = about.text if about.name is None else about.name
    return JobNotPicklableError(text, direction=about.direction, name=name)


def describe(error: BaseException) -> str:
    """Return the type and the text of *error*."""
    # isinstance() would read its __class__, which may run code.
    if issubclass(type(error), scripts.GlobalError):
        return str(error)
    return f"{type(error).__qualname__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """Return the text of *error*, whatever its ``__str__`` does."""
    try:
        return str(error)
    except BaseException as worse:
        return f"<its __str__ raised {type(worse).__qualname__}>"


# How many arguments, and items of containers among them, are checked; and how many
# attributes of one object.  That takes 5 us.
_LOOKS = 100

# How many objects of users' classes may be pickled: a pickler needs 1 to 10 us for
# each.
_OBJECTS = 400


def _look_for_large(values: Iterable[Any], limit: int) -> Callable[[Any], None] | None:
    """Look for large objects among *values*, and the items of containers among them.

    Args:
        values: The parts of a call.
        limit: How many bytes an object may have without being large.

    Returns:
        What is to be called with each object of a user's class that is about to be pickled: it
        raises an :class:`OverLimitError` if the object is large, or holds a large one, or if there
        are too many.  ``None`` if every object was checked, so that there is no need.

    Raises:
        OverLimitError: If there is a large object.
    """
    objects = iter(range(_OBJECTS))

    def search(values: Iterable[Any]) -> bool:
        seen_all = True
        found = list(islice(values, _LOOKS))  # the list grows during the loop
        for value in found:
            cls = type(value)
            if cls is str:
                if len(value) > limit:
                    raise OverLimitError
            elif cls is int:
                if value.bit_length() > 8 * limit:
                    raise OverLimitError
            elif cls is list or cls is tuple or cls is dict:
                room = _LOOKS - len(found)
                seen_all = seen_all and len(value) <= room
                found += islice(value.values() if cls is dict else value, room)
            elif cls not in FLAT:
                seen_all = False
        return seen_all and len(found) < _LOOKS

    def watch(value: Any) -> None:
        if next(objects, None) is None or _is_copied(value, limit):
            raise OverLimitError
        try:
            attributes = value.__dict__
        except Exception:
            return
        if type(attributes) is dict and attributes:
            search(attributes.values())

    return None if search(values) else watch


def pack_error(error: BaseException) -> bytes:
    """Return the payload of an ``ERROR`` frame, whatever *error* is that the job raised."""
    remote = traceback_of(error)
    name, text = map(printable_text, (type_name(error), text_of(error)))
    cls = type(error)
    own = cls.__reduce__ is not _builtin_base(cls).__reduce__
    # The way of exceptions leaves out what is in slots.
    first = not own and any(vars(it).get("__slots__") for it in cls.__mro__)
    for rebuilt in (first, not first):
        with suppress(BaseException):  # the next way is tried
            data = dumps(error, rebuilt=rebuilt)
            # Only an actual one shows that the pool can make it.
            copy = pickle.loads(data)
            if type(copy) is cls and (rebuilt or _is_faithful(copy, error)):
                break
    else:
        told = f"the job raised {name}, which cannot be pickled: {text}"
        substitute = JobNotPicklableError(
            told, direction="exception", name=name, text=text
        )
        data = pickle.dumps(substitute, 5)
    return pickle.dumps((data, remote, name, text), 5)


def load_error(payload: Payload, pause: Pause | None = None) -> BaseException:
    """Read the payload of an ``ERROR`` frame; the remote traceback is its cause.

    *pause* is called now and then while a large one is unpickled.  An exception that
    must not be raised in the caller comes in a :exc:`JobRaisedError`.  One that cannot
    be unpickled here comes as a :exc:`JobNotPicklableError`.
    """
    remote = name = text = ""
    try:
        data, told, *texts = loads(payload, pause=pause)
        remote, (name, text) = printable_block(told), map(printable_text, texts)
        error = _check_error(loads(data, pause=pause))
        if type(error) is ModuleNotFoundError and (
            here := modules.get(error.name or "")
        ):
            error.add_note(_ONLY_HERE.format(here))
    except BaseException as broken:  # what is unpickled may raise anything
        what = f"{name}: {text}" if name else printable_text(describe(broken))
        error = JobNotPicklableError(
            f"the job's exception cannot be unpickled here: {what}",
            direction="exception",
            name=name,
            text=text,
        )
    # The cause of a hook's failure is what the hook has raised.
    first = error.exception if isinstance(error, HookError) else error
    # Neither this nor _rebuild() calls the __setattr__ of a frozen dataclass.
    object.__setattr__(first, "__cause__", RemoteTraceback(remote))
    return raisable(error)


def raisable(error: BaseException) -> BaseException:
    """Return *error*, or an error around it if it must not be raised in the caller."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return JobRaisedError(error)


def _check_error(error: object) -> BaseException:
    if not isinstance(error, BaseException):
        raise TypeError("the outcome is no exception")
    # Each isinstance() in the pool would call a property of that name.
    if any("__class__" in vars(cls) for cls in type(error).__mro__[:-1]):
        raise TypeError("the exception defines __class__")
    return error


def _is_faithful(copy: BaseException, error: BaseException) -> bool:
    # What SystemExit and StopIteration take from their arguments, a reducer of copyreg may
    # forget, as that of tblib does, which Dask imports.
    for name in ("code", "value"):
        if (getattr(copy, name, None) is None) != (getattr(error, name, None) is None):
            return False
    return text_of(copy) == text_of(error) and vars(copy).keys() == vars(error).keys()


@cache
def _rebuilding(base: Any) -> Any:
    """Derive picklers of exceptions that are rebuilt without their ``__init__``."""

    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, obj: object) -> Any:
            if isinstance(obj, BaseException):
                cls = type(obj)
                # What the built-in class needs to rebuild it, and its attributes.
                reduced: Any = _builtin_base(cls).__reduce__(obj)
                state: Any = object.__getstate__(obj)
                slots = state[1:] if type(state) is tuple else ()
                return _rebuild, (cls, *reduced[1:], *slots)
            if base is pickle.Pickler:  # it has no such method
                return NotImplemented
            return base.reducer_override(self, obj)

    return Pickler


def _rebuild(
    cls: type[BaseException],
    args: tuple[Any, ...],
    *states: dict[str, Any],
) -> BaseException:
    error = cls.__new__(cls, *args)
    # It does not call cls.__init__, whose parameters nobody knows.  It calls that of
    # the built-in base class, which fills the fields of an OSError or a
    # UnicodeDecodeError.
    _builtin_base(cls).__init__(error, *args)
    for state in states:
        for name, value in state.items():
            object.__setattr__(error, name, value)
    return error


def _builtin_base(cls: type[BaseException]) -> type[BaseException]:
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def type_name(error: BaseException) -> str:
    """Return the full name of the type of *error*."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


# The packages that call the user's code.
_CALLERS = frozenset(("asyncio", "asyncpool", "importlib", "uvloop"))


def users_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of *error* without the frames that have called the user's code.

    It begins at the first frame of the user's.  If there is none, as in a job that calls a
    function of :mod:`asyncio`, it begins behind the last frame of the worker.
    """
    shown = tb = error.__traceback__
    while tb is not None:
        module = str(tb.tb_frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in _CALLERS:
            return tb
        tb = tb.tb_next
        if module.startswith("asyncpool._worker."):
            shown = tb
    return shown


def traceback_of(error: BaseException) -> str:
    """Return the user's part of the traceback of *error*, and its text."""
    return format_error(error, users_traceback(error))


def format_error(error: BaseException, tb: TracebackType | None) -> str:
    """Return the traceback *tb* of *error* and its text, whatever goes wrong on the way.

    A ``__str__`` or ``__notes__`` may raise anything.  :mod:`traceback` itself may
    import modules where no more file can be opened, and may warn where warnings are
    errors.
    """
    try:
        return "".join(traceback.format_exception(type(error), error, tb))
    except BaseException:  # it may raise anything
        head = "Traceback (most recent call last):\n"
    frames = [
        f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}\n'
        for frame, line in traceback.walk_tb(tb)
    ]
    return "".join((head, *frames, f"{describe(error)}\n"))


# Other ways to reduce objects that pickle gets wrong, or is slow with.
#
# Each pickler gets a table of its own.  So no other pickler in the process changes, as
# one would with ``copyreg``.
#
# Most of this is about arrays whose buffer NumPy copies into the pickle although it could
# stay out.
#
# NumPy keeps the buffer of an array out of a pickle if the buffer is in one piece and the
# buffer protocol knows its type.  NumPy copies strided arrays and arrays of dates as a
# whole instead, with the GIL held, and copies them once more when they are unpickled: 64
# MB of dates took 0.5 s there and back.  This makes these arrays fit: it copies
# strided arrays first, and pickles arrays of dates as numbers, with their type put back
# on the other side.
#
# What the other side calls is NumPy's own function, with the type that it is given.

ARRAYS = "numpy"
FRAMES = "polars"
CONNECTIONS = "multiprocessing.connection"

_DISPATCH_TABLE = vars(pickle.Pickler)["dispatch_table"]


def teach(pickler: Any, others: Reducers | None = None) -> None:
    """Let *pickler* reduce objects as this module says.

    *others* are for objects that this module does not know, and go before its own.
    """
    known = getattr(pickler, "dispatch_table", copyreg.dispatch_table)
    table: Reducers = {}
    for name, reducers in _TAUGHT.items():
        if module := modules.get(name):
            for cls, reduce in reducers.items():
                # A module that is still being imported may not have the name yet.
                if found := getattr(module, cls, None):
                    table[found] = reduce
    files: Reducers = {TextIOWrapper: _reduce_file} if TextIOWrapper in known else {}
    if table or others or files:
        if type(known) is not dict:  # but cloudpickle's chain: to copy it takes 15 us
            own: Any = known
            known = {**copyreg.dispatch_table, **own.maps[0]}
        # cloudpickle's class has such an attribute too, which hides that of the
        # instance.
        table = {**known, **table} if others is None else {**table, **others, **known}
        _DISPATCH_TABLE.__set__(pickler, {**table, **files})


def _reduce_file(file: TextIOWrapper) -> Any:
    """Refuse an open file, as the standard library's pickler does.

    cloudpickle would send its whole content, and what the worker writes there would be
    lost.
    """
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    raise TypeError(
        f"cannot send {file!r}, which is open here: send its path, or what is in it"
    )


def _refuse(connection: object) -> NoReturn:
    """Refuse a connection of ``multiprocessing``.

    The standard library's own pickler passes its descriptor on.  All other picklers see
    an object with a number in it.  The copy would use, and close, whatever descriptor
    has that number in the other process.
    """
    raise TypeError(
        f"cannot send {connection!r}, which is a descriptor of this process"
    )


def reduce_array(array: Any) -> Any:
    """Return the parts of *array*, for a pickler that keeps large buffers apart."""
    dtype, flags = array.dtype, array.flags
    if array.nbytes < LARGE or dtype.hasobject:
        return array.__reduce_ex__(5)
    try:
        memoryview(array)
    except Exception:
        # NumPy has always made new arrays of these, so that one may write to them.
        if not (flags.forc and flags.writeable):
            array = array.copy("A")
        bare = array.view(f"V{dtype.itemsize}")
        function, (buffer, _, *rest) = bare.__reduce_ex__(5)
        return function, (buffer, dtype, *rest)
    if not flags.forc and not _is_transposed(array):
        array = array.copy()  # copying releases the GIL
    return array.__reduce_ex__(5)


def _size_of(value: Any) -> int:
    """Return how many bytes an array, a tensor or a table has; 0 if *value* is none of these."""
    cls = type(value)
    if cls.__module__ == "array":
        return memoryview(value).nbytes
    if hasattr(cls, "nbytes"):
        return int(value.nbytes)
    # As tables of polars say it.
    return value.estimated_size() if hasattr(cls, "estimated_size") else 0


def _is_copied(value: Any, limit: int) -> bool:
    """Tell whether a pickler copies a buffer of *value* at once that is larger than *limit*.

    It does not if the buffer stays out of the pickle.  The pickle of a class that is derived from
    NumPy's, such as a masked array, has a copy of it, as that of the standard library's arrays.
    The pickle of an array of objects has a list.
    """
    try:
        if _size_of(value) <= limit:
            return False
        view, cls = memoryview(value), type(value)
        base: Any = getattr(modules.get(ARRAYS), "ndarray", ())
        is_derived = cls is not base and issubclass(cls, base)
        in_one_piece = view.contiguous and "O" not in view.format
        return bool(is_derived or cls.__module__ == "array" or not in_one_piece)
    except Exception:
        return True


def _reduce_tensor(tensor: Any) -> Any:
    """Return a tensor of PyTorch as the array that has its memory, if there can be one."""
    torch = modules["torch"]
    with suppress(Exception):  # it is sparse, say, or on a GPU
        whole = tensor.untyped_storage().nbytes()  # less, if it repeats elements
        is_plain = not tensor.requires_grad and not vars(tensor)
        if is_plain and LARGE <= _size_of(tensor) <= whole:
            if tensor.dtype is torch.bfloat16:  # NumPy has no such type
                return torch.Tensor.view, (tensor.view(torch.int16), tensor.dtype)
            return torch.from_numpy, (tensor.numpy(),)
    return tensor.__reduce_ex__(5)


def _reduce_frame(frame: Any) -> Any:
    """Return a table of polars as the one of Arrow that has its memory, if there can be one."""
    polars = modules["polars"]
    with suppress(Exception):  # there is no pyarrow, say, or a column of objects
        size = _size_of(frame)
        if size >= LARGE and "" not in frame.columns:  # from_arrow() would rename that
            table = frame.to_arrow(compat_level=polars.CompatLevel.newest())
            # Arrow sends the whole memory of what is a part of another table.
            if table.get_total_buffer_size() <= 2 * size:
                return polars.from_arrow, (table,)
    return frame.__reduce_ex__(5)


def _reduce_series(series: Any) -> Any:
    polars = modules["polars"]
    if not series.name:
        return polars.Series.alias, (series.alias("series"), "")
    return polars.DataFrame.to_series, (series.to_frame(),)


# By the names of their modules, and by their own.
_TAUGHT: dict[str, dict[str, Callable[[Any], Any]]] = {
    ARRAYS: {"ndarray": reduce_array},
    FRAMES: {"DataFrame": _reduce_frame, "Series": _reduce_series},
    "torch": {"Tensor": _reduce_tensor},
    CONNECTIONS: {"Connection": _refuse},
}


def _is_transposed(array: Any) -> bool:
    """Tell whether *array* is in one piece except for the order of its axes.

    Newer versions of NumPy keep the buffers of such arrays out of a pickle, too.
    """
    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return bool(array.transpose(axes).flags.c_contiguous)


# The serializers.


def is_heavy(payload: Payload) -> bool:
    """Tell whether *payload* takes long to load."""
    stream = payload.stream if isinstance(payload, ReceivedPickle) else payload
    return len(stream) > HEAVY


class Serializer:
    """The service's half.

    The functions that load raise a :exc:`ProtocolError` for what no worker of this pool would
    send, and a :exc:`JobNotPicklableError` for what cannot be had here.

    Attributes:
        pack_job: Packs a call.
        load_value: Loads a result.
        load_item: Loads an item of a stream.
        load_error: Loads what a job has raised.
        load_details: Loads the details of a heartbeat.
        is_heavy: Tells whether an outcome takes long to load.
    """

    __slots__ = ()

    pack_job: Callable[..., Packed] = staticmethod(pack_job)
    load_value: Callable[..., Any] = staticmethod(load_value)
    load_item: Callable[..., Any] = staticmethod(load_value)
    load_error: Callable[..., BaseException] = staticmethod(load_error)
    load_details: Callable[..., Any] = staticmethod(partial(load_value, about=DETAILS))
    is_heavy: Callable[..., bool] = staticmethod(is_heavy)


class WorkerSerializer:
    """A worker's half.

    Attributes:
        load_function: Loads what a ``FUNCTION`` frame carries.
        load_job: Loads a call.
        pack_value: Packs what the running job returns.
        pack_item: Packs what the running stream yields.
        pack_error: Packs what a job raises.
        pack_details: Packs the details of a heartbeat.
        load_details: Loads these.
    """

    load_function: Callable[[bytes], Any] = staticmethod(pickle.loads)
    load_job: Callable[..., Any] = staticmethod(load_job)
    pack_value: Callable[..., Packed] = staticmethod(pack_value)
    pack_item: Callable[..., Packed] = staticmethod(pack_value)
    pack_error: Callable[..., bytes] = staticmethod(pack_error)
    pack_details: Callable[[object], bytes] = staticmethod(dumps)
    load_details: Callable[[bytes], Any] = staticmethod(pickle.loads)


PICKLE = Serializer()
PICKLE_WORKER = WorkerSerializer()
