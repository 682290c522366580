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

A pool chooses its serializer once, and each function of the pool has the choice at hand.  The
classes here are for pickle; ``_core/data_only.py`` and ``_worker/data.py`` derive those of data-
only pools.  Their attributes are plain functions: for the path of a job that costs as much as a
global function.
"""

from __future__ import annotations

import pickle
import traceback
from contextlib import suppress
from functools import cache, partial
from io import BytesIO
from itertools import islice
from sys import modules
from types import BuiltinFunctionType, FunctionType, MethodType

from asyncpool._wire.buffers import (
    ARRAYS,
    CONNECTIONS,
    FRAMES,
    HEAVY,
    LARGE,
    MAIN,
    OutOfBandPickle,
    OverLimitError,
    dump,
    is_copied,
    is_heavy,
    keep_large,
    loads,
    teach,
)
from asyncpool._wire.scripts import GlobalError
from asyncpool._wire.text import function_name, printable_block, printable_text
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

    from asyncpool._wire.buffers import Pause, Payload

    Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
    Packed = bytes | OutOfBandPickle
    Direction = Literal["arguments", "result", "exception", "details"]

# Types whose values hold no other object.
_SCALARS: frozenset[type] = frozenset((int, float, bool, type(None)))

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
            probe = SizeProbe(limit)
            if not probe.search((function, *args, *kwargs.values())[number > 0 :]):
                watch = probe.watch
        pickled = dump(call, limit=limit, pause=pause, watch=watch)
    except OverLimitError:
        raise
    except Exception as error:
        parts = [("fn", function), *((f"args[{at}]", it) for at, it in enumerate(args))]
        parts += [(f"kwargs[{key!r}]", value) for key, value in kwargs.items()]
        attempt = partial(dump, limit=limit, pause=pause)
        refuse(error, parts, attempt, hint=_HINT, when=_ONLY_AT_A_START)
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
        if type(value) in _SCALARS:
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
        what = f"the job's result, of type {name},"
        parts = [("result", value)]
        refuse(error, parts, lambda it: dumps(it, []), what, "result", name, hint=hint)
    if limit is not None and len(data) > limit:
        raise too_large(len(data), limit, "the job's result", "result", "")
    return data


def load_value(
    payload: Payload,
    pause: Pause | None = None,
    what: str = "the job's result",
    direction: Direction = "result",
) -> Any:
    """Read what came with a ``VALUE`` frame.

    Args:
        payload: The payload, with its buffers.
        pause: Called now and then while a large object is unpickled.
        what: What errors call it.
        direction: As the error has it.

    Raises:
        JobNotPicklableError: If the value cannot be unpickled here.
    """
    try:
        if pause is None and type(payload) is bytes:
            return pickle.loads(payload)
        return loads(payload, pause=pause)
    except BaseException as error:  # what is unpickled may raise anything
        raise unpicklable(error, what, direction, "", verb=_UNPICKLED) from error


def is_flat(values: Iterable[Any]) -> bool:
    """Tell whether it is certain, without pickling them, that *values* are small when pickled."""
    room = LARGE
    for value in values:
        cls = type(value)
        if cls is int:
            room -= 9 + value.bit_length()  # eight times what it needs: few are long
        elif cls is str or cls is bytes:
            room -= 9 + len(value)
        elif cls in _SCALARS:
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
    whole: str = "the call",
    direction: Direction = "arguments",
    name: str = "",
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
        whole: What it is, for the text: if each part can be pickled, or if *name* is given.
        direction: As the error has it.
        name: How the error names it; by default that is the part, or *whole*.
        kind: What precedes that in the text.
        hint: What the text ends with,
        when: if the reason contains one of these.

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
            if type(value) in _PLAIN or id(value) in tried:
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
                if {type(own), type(own.__cause__)} & {GlobalError, RecursionError}:
                    break
                todo = _parts_of(value)
    what = whole if name else kind + (part or whole)
    where = "" if path == part else f" - at `{path}`"
    if any(text in describe(error) for text in when):
        where += hint
    name = name or part or whole
    try:
        raise unpicklable(error, what, direction, name, hint=where) from error
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
    what: str = "the call",
    direction: Direction = "arguments",
    name: str | None = None,
    *,
    hint: str = "",
    verb: str = "pickled",
) -> JobNotPicklableError:
    """Return the error for a call, or for *what* else, whose pickling has raised *error*.

    Args:
        error: What pickling it has raised.
        what: How the text names it.
        direction: As the error has it.
        name: How the error names it; as the text does by default.
        hint: What the text ends with.
        verb: What cannot be done, if that is something else.
    """
    refusal = JobNotPicklableError(
        f"{what} cannot be {verb}: {describe(error)}{hint}",
        direction=direction,
        name=what if name is None else name,
    )
    refusal.__cause__ = error
    return refusal


_UNPICKLED = "unpickled here"

# Returns the error for a result whose unpickling has raised the argument.
unloadable = partial(
    unpicklable, what="the job's result", direction="result", name="", verb=_UNPICKLED
)


def too_large(
    size: int,
    limit: int,
    what: str = "the call",
    direction: Direction = "arguments",
    name: str = "the call",
    how: str = "when pickled",
) -> JobNotPicklableError:
    """Return the error for a call, or for *what* else, that has more bytes than *limit*."""
    text = f"{what} has {size} bytes {how}, and max_message_size is {limit}"
    return JobNotPicklableError(text, direction=direction, name=name)


def describe(error: BaseException) -> str:
    """Return the type and the text of *error*."""
    if issubclass(type(error), GlobalError):  # reading its __class__ may run code
        return str(error)
    return f"{type(error).__qualname__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """Return the text of *error*, whatever its ``__str__`` does."""
    try:
        return str(error)
    except BaseException as worse:
        return f"<its __str__ raised {type(worse).__qualname__}>"


# Types whose values hold no other object, and are written at once or in pieces.
_PLAIN: frozenset[type] = _SCALARS | {str, bytes}

# How many arguments, and items of containers among them, are checked; and how many
# attributes of one object.  That takes 5 us.
_LOOKS = 100

# How many objects of users' classes may be pickled: a pickler needs 1 to 10 us for
# each.
_OBJECTS = 400


class SizeProbe:
    """Looks for large objects in one call.

    Args:
        limit: How many bytes an object may have without being large.
    """

    __slots__ = ("_limit", "_objects")

    def __init__(self, limit: int) -> None:
        self._limit, self._objects = limit, _OBJECTS

    def search(self, values: Iterable[Any]) -> bool:
        """Check *values*, and the items of containers among them.

        Returns:
            Whether every object was checked, so that no pickler needs :meth:`watch`.

        Raises:
            OverLimitError: If there is a large object.
        """
        limit, seen_all = self._limit, True
        found = list(islice(values, _LOOKS))  # the list grows during the loop
        for value in found:
            cls = type(value)
            if (cls is str and len(value) > limit) or (
                cls is int and value.bit_length() > 8 * limit
            ):
                raise OverLimitError
            if cls is list or cls is tuple or cls is dict:
                room = _LOOKS - len(found)
                seen_all = seen_all and len(value) <= room
                found += islice(value.values() if cls is dict else value, room)
            elif cls not in _PLAIN:
                seen_all = False
        return seen_all and len(found) < _LOOKS

    def watch(self, value: Any) -> None:
        """Check an object of a user's class that is about to be pickled.

        Raises:
            OverLimitError: If the object is large, or holds a large one, or if
                there are too many.
        """
        self._objects -= 1
        if self._objects < 0 or is_copied(value, self._limit):
            raise OverLimitError
        try:
            attributes = value.__dict__
        except Exception:
            return
        if type(attributes) is dict and attributes:
            self.search(attributes.values())


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
    load_details: Callable[..., Any] = staticmethod(
        partial(load_value, what="the details of a heartbeat", direction="details")
    )
    is_heavy: Callable[..., bool] = staticmethod(is_heavy)


class WorkerSerializer:
    """A worker's half.

    Attributes:
        load_function: Loads what a ``FUNCTION`` frame carries.
        load_job: Loads a call.
        known_as: Returns what the context of a job has as its function, given the function, and
            what :attr:`load_function` has returned.
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
    known_as: Callable[..., object] = staticmethod(lambda fn, _: function_name(fn))


PICKLE = Serializer()
PICKLE_WORKER = WorkerSerializer()
