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
classes here are for pickle; ``_core/data_only.py`` and ``_wire/schemas.py`` derive those of data-
only pools.  Their attributes are plain functions: for the path of a job that costs as much as a
global function.
"""

from __future__ import annotations

import pickle
import traceback
from contextlib import suppress
from functools import cache, partial
from io import BytesIO
from itertools import chain, islice
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
    ReceivedPickle,
    dump,
    is_heavy,
    keep_large,
    loads,
    stays_apart,
    teach,
)
from asyncpool._wire.scripts import GlobalError, pickler_of_results
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
    from typing import Any, Literal

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


def dumps(value: object, buffers: list[memoryview] | None = None) -> bytes:
    """Pickle what a worker sends, by value where the pool would not find a reference.

    Large buffers go into the empty list *buffers*, if there is one.

    Raises:
        Exception: Any that the value's own methods raise, or the serializer.
    """
    keep = None if buffers is None else keep_large(buffers)
    try:
        # What teach() knows; not a function, whose call would cost 35 ns for each job.
        if ARRAYS in modules or CONNECTIONS in modules or FRAMES in modules:
            data = dumps_with(pickle.Pickler, value, keep)
        else:
            data = pickle.dumps(value, 5, buffer_callback=keep)  # faster by 1.5 us
    except Exception:
        data = MAIN
    if data.find(MAIN) < 0:  # faster than "in"
        return data
    if buffers:
        buffers.clear()
    return dumps_with(pickler_of_results(), value, keep)


def pack_job(
    function: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    number: int = 0,
    limit: int | None = None,
    pause: Callable[[], None] | None = None,
) -> bytes | OutOfBandPickle:
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
        if (
            number
            and (not args or is_flat(args))
            and (not kwargs or is_flat(kwargs.values()))
        ):
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
        name, where, why = culprit("the call", error, parts, attempt)
        if any(text in describe(why) for text in _ONLY_AT_A_START):
            where += _HINT
        raise unpicklable(why, name, hint=where) from why
    return pickled.payload if pickled.travels_inline else pickled


def load_job(
    payload: bytes | memoryview | ReceivedPickle,
    function: Callable[..., Any] | None = None,
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Read what came with a ``JOB`` frame, which must come from the pool.

    Args:
        payload: The payload, with its buffers.
        function: What to call, unless the function came along.

    Raises:
        BaseException: Any that unpickling the parts raises.
    """
    call = pickle.loads(payload) if type(payload) is bytes else loads(payload)
    return call if function is None else (function, *call)


_GENERATORS = frozenset(("generator", "async_generator"))


def pack_value(value: object, limit: int | None = None) -> bytes | OutOfBandPickle:
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
        hint = "; stream() yields what it yields" if name in _GENERATORS else ""
        what = f"the job's result, of type {name},"
        _, where, why = culprit(
            "", error, [("result", value)], lambda it: dumps(it, [])
        )
        try:
            raise unpicklable(why, what, "result", name, hint=where + hint) from why
        finally:
            why.__context__ = None  # nor a cycle here, which would keep the result
            del why
    if limit is not None and len(data) > limit:
        raise too_large(len(data), limit, "the job's result", "result", "")
    return data


def load_value(
    payload: bytes | memoryview | ReceivedPickle,
    pause: Callable[[], None] | None = None,
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
        raise unloadable(error, what, direction) from error


def unloadable(
    error: BaseException,
    what: str = "the job's result",
    direction: Direction = "result",
) -> JobNotPicklableError:
    """Return the error for a result, or for *what* else, whose unpickling has raised *error*."""
    return unpicklable(error, what, direction, "", verb="unpickled here")


def dumps_with(
    pickler: Any,
    value: object,
    keep: Callable[[pickle.PickleBuffer], bool] | None = None,
) -> bytes:
    """Return *value* as a pickler of this class writes it, taught to reduce what pickle gets wrong."""
    file = BytesIO()
    made = pickler(file, 5, buffer_callback=keep)
    teach(made)
    made.dump(value)
    return file.getvalue()


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


def culprit(
    whole: str,
    error: Exception,
    parts: Iterable[tuple[str, object]],
    attempt: Callable[[object], object],
) -> tuple[str, str, Exception]:
    """Find what makes it impossible to pickle something.

    Args:
        whole: What it is.
        error: What pickling it has raised.
        parts: Its parts, each with its name.
        attempt: Pickles one.

    Returns:
        The name of the part that cannot be pickled, or *whole* if each can be; the end of the
        error's text, which says where in this part the culprit is; and why.
    """
    name = path = ""
    tried: dict[int, object] = {}
    todo: Iterable[tuple[str, object]] | None = parts
    while todo is not None and len(tried) < _MOST_TRIES:
        parts, todo = todo, None
        with suppress(Exception):  # of the objects' own methods
            # They come as pickle meets them: none that is behind the culprit is pickled for this.
            for step, part in parts:
                if type(part) in _PLAIN or id(part) in tried:
                    continue
                tried[id(part)] = part
                try:
                    attempt(part)
                except OverLimitError:
                    pass  # what is behind the limit has not been reached
                except Exception as own:
                    error, path = own, path + step
                    name = name or path
                    # The text of the former says all; the latter, which cloudpickle wraps, is no
                    # single object's.
                    causes = {type(own), type(own.__cause__)}
                    if not causes & {GlobalError, RecursionError}:
                        todo = _parts_of(part)
                    break
                if len(tried) == _MOST_TRIES:
                    break
    try:
        return name or whole, "" if path == name else f" - at `{path}`", error
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
        self._limit = limit
        self._objects = _OBJECTS

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
        if self._objects < 0 or self._is_copied(value):
            raise OverLimitError
        try:
            attributes = value.__dict__
        except Exception:
            return
        if type(attributes) is dict and attributes:
            self.search(attributes.values())

    def _is_copied(self, value: Any) -> bool:
        """Tell whether a pickler copies a large buffer of *value* at once."""
        cls, limit, size = type(value), self._limit, 0
        try:
            if cls.__module__ == "array":
                return bool(len(value) * value.itemsize > limit)
            if hasattr(cls, "nbytes"):
                size = value.nbytes
            elif hasattr(cls, "estimated_size"):  # as tables of polars say it
                size = value.estimated_size()
            return bool(size > limit and not stays_apart(value))
        except Exception:
            return True


def pack_error(error: BaseException) -> bytes:
    """Return the payload of an ``ERROR`` frame, whatever *error* is that the job raised."""
    remote = traceback_of(error)
    name, text = map(printable_text, (type_name(error), text_of(error)))
    attempts: list[Callable[[BaseException], bytes]] = [dumps, _dumps_rebuilt]
    cls = type(error)
    own = cls.__reduce__ is not _builtin_base(cls).__reduce__
    if not own and any(vars(it).get("__slots__") for it in cls.__mro__):
        attempts.reverse()  # the way of exceptions leaves out what is in slots
    for attempt in attempts:
        try:
            data = attempt(error)
            copy = pickle.loads(
                data
            )  # only an actual one shows that the pool can make it
            if type(copy) is type(error) and (
                attempt is _dumps_rebuilt or _is_faithful(copy, error)
            ):
                return pickle.dumps((data, remote, name, text), 5)
        except BaseException:  # noqa: S112 - the next way is tried
            continue
    substitute = JobNotPicklableError(
        f"the job raised {name}, which cannot be pickled: {text}",
        direction="exception",
        name=name,
        text=text,
    )
    return pickle.dumps((pickle.dumps(substitute, 5), remote, name, text), 5)


def load_error(
    payload: bytes | memoryview | ReceivedPickle,
    pause: Callable[[], None] | None = None,
) -> BaseException:
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
    return (
        text_of(copy) == text_of(error)
        and copy.__dict__.keys() == error.__dict__.keys()
        # What SystemExit and StopIteration take from their arguments, a reducer of copyreg may
        # forget, as that of tblib does, which Dask imports.
        and all(
            (getattr(copy, it, None) is None) is (getattr(error, it, None) is None)
            for it in ("code", "value")
        )
    )


def _dumps_rebuilt(error: BaseException) -> bytes:
    try:
        data = dumps_with(_rebuilding(pickle.Pickler), error)
    except Exception:
        data = MAIN
    if MAIN in data:
        data = dumps_with(_rebuilding(pickler_of_results()), error)
    return data


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
    for name, value in chain.from_iterable(state.items() for state in states):
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

    @staticmethod
    def known_as(function: Callable[..., Any], known: Any) -> object:
        del known
        return function_name(function)


PICKLE = Serializer()
PICKLE_WORKER = WorkerSerializer()
