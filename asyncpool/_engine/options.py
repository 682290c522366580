"""The options of pools and clusters: each is checked once, and then read by everybody.

An option that is read later is a field of the frozen record, and has its check there.  One that
something else is made of has its check in the table.  The defaults are in the signatures of the
constructors, where editors show them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args

from asyncpool._core import checks
from asyncpool._core.checks import option
from asyncpool._core.core import CoreOptions
from asyncpool._core.options import (
    CHECKS,
    JobOptions,
    WorkerEnv,
    WorkerLimits,
    changed,
)
from asyncpool._dataclass import dataclass
from asyncpool._engine import machine
from asyncpool._wire.frames import MAX_PAYLOAD
from asyncpool._wire.messages import WorkerConfig
from asyncpool._wire.records import Later
from asyncpool._wire.text import NAMES, is_name

if TYPE_CHECKING:
    from asyncpool import sandbox
    from asyncpool._core import data_only
    from asyncpool._core.data_only import DataOnly
    from asyncpool._engine import handover, propagation
    from asyncpool._engine.deaths import CrashCallback
    from asyncpool._engine.handover import Handover
    from asyncpool._engine.propagation import Propagation
    from asyncpool._sandbox import confinement
    from asyncpool._sandbox.confinement import Confinement
    from asyncpool._wire import schemas
else:  # for options that few pools have
    data_only = Later("asyncpool._core.data_only")
    schemas = Later("asyncpool._wire.schemas")
    handover = Later("asyncpool._engine.handover")
    propagation = Later("asyncpool._engine.propagation")
    confinement = Later("asyncpool._sandbox.confinement")
    sandbox = Later("asyncpool.sandbox")

LauncherKind = Literal["forkserver", "spawn"]
LoopKind = Literal["asyncio", "uvloop"]
OutputMode = Literal["log", "inherit"]
ReadyWhen = Literal["any", "all"]


def anything(_: str, value: Any) -> Any:
    """Accept every value: what makes use of it checks it."""
    return value


def name_or_number(kind: str) -> checks.Check:
    """Return the check of a name; without one it is made up: ``"pool-1"``, ``"pool-2"``."""
    numbers = itertools.count(1)

    def check(name: str, value: str | None) -> str:
        checks.TEXT.or_none()(name, value)
        try:
            (value or "").encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            raise ValueError(
                f"{name} must be text that can be written as UTF-8, not {value!r}: it is in "
                "logs and metrics"
            ) from None
        return value or f"{kind}-{next(numbers)}"

    return check


def check_codec(codec: object, **needing: object) -> None:
    """Check that nothing is given that only a pool with a codec has.

    Args:
        codec: The codec, or ``None``.
        needing: What is given for a pool with one, by its name.

    Raises:
        ValueError: If there is something, and no codec.
    """
    for name, value in needing.items():
        if codec is None and value:
            raise ValueError(f"{name} is for pools with a codec, and this one has none")


def _workers(_: str, value: int | tuple[int, int] | None) -> tuple[int, int]:
    return machine.least_and_most(machine.usable_cpus() if value is None else value)


def _path(name: str, value: Any) -> str:
    checks.Argument((str, os.PathLike), "a path or None")(name, value)
    text: str = os.fspath(value)
    checks.TEXT.or_none()(name, text)  # a path of bytes cannot be shown
    if not text:
        raise ValueError(f"{name} is empty: name a file")
    return text


# Says whether pools that are not told have a control socket.
_CONTROL = "ASYNCPOOL_CONTROL"
_SWITCH = {"": False, "0": False, "1": True}


def _control(name: str, value: Any) -> Any:
    """Return a name, or a path with a slash; ``""`` for the pool's own name."""
    if value is None:
        word = os.environ.get(_CONTROL, "")
        if word not in _SWITCH:
            raise ValueError(
                f"the environment variable {_CONTROL} is 0 or 1, not {word!r}"
            )
        value = _SWITCH[word]
    if isinstance(value, bool):
        return "" if value else None
    if isinstance(value, os.PathLike):
        text = _path(name, value)
        return text if "/" in text else f"./{text}"
    checks.Argument((str,), "a bool, a name, a path or None")(name, value)
    if "/" not in value and not is_name(value):
        raise ValueError(
            f"{name} takes True, a path with a slash in it, or a name, which is {NAMES}, "
            f"not {value!r}"
        )
    return value


def _sandbox(name: str, value: Any) -> Any:
    return checks.Argument((sandbox.Sandbox,), "a Sandbox or None")(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(CoreOptions):
    """The options of a pool, or of the workers of a cluster, and what is made of them.

    See :class:`asyncpool.Pool` for the meaning of its options.  In a cluster, those that only
    pools have are at their defaults.

    Attributes:
        worker: The configuration of each worker.
        propagation: The context variables that travel with jobs, if there are any.
        handover: The initializer that each worker calls first, with the descriptors that it gets.
        data: What a pool with a codec adds to its functions, if this one has a codec.
        confinement: The sandbox of the workers, if they have one.
        job_options: The options of jobs for which no others are set.
    """

    name: str
    launcher: LauncherKind = option(checks.one_of(get_args(LauncherKind)))
    worker_loop: LoopKind = option(machine.check_loop_kind)
    worker_output: OutputMode = option(checks.one_of(get_args(OutputMode)))
    on_crash: CrashCallback | None = option(checks.CALLBACK)
    preload: tuple[str, ...] = option(checks.several("names of modules", each=str))
    ping_timeout: float | None = option(checks.PERIOD_OR_NONE)
    ready: ReadyWhen = option(checks.one_of(get_args(ReadyWhen)))
    close_timeout: float | None = option(checks.PERIOD_OR_NONE, None)
    max_queued: int | None = option(checks.at_least(0).or_none(), None)
    max_shared_memory: int = option(checks.at_least(0), 0)
    worker_env: WorkerEnv = option(
        lambda _, value: WorkerEnv({} if value is None else value), WorkerEnv({})
    )
    fresh: bool = option(checks.SWITCH, False)
    trace: str | None = option(checks.optional(_path), None)
    max_traced: int | None = option(checks.at_least(1).or_none(), None)
    control: str | None = option(_control, None)
    worker: WorkerConfig
    # Not by their modules, which the dataclass of Python 3.15 would import.
    propagation: Propagation | None = None
    handover: Handover | None = None
    data: DataOnly | None = None
    confinement: Confinement | None = None
    job_options: JobOptions = JobOptions()

    @property
    def fork(self) -> bool:
        """Whether workers are forked from a launcher that has imported *preload*."""
        return self.launcher == "forkserver"

    @property
    def launcher_imports(self) -> bool:
        """Whether workers find what the launcher has imported, *preload* and the script.

        A fresh interpreter finds nothing.  And a worker with environment variables of its own
        has to set them before any import.
        """
        return self.fork and not self.worker_env.varies

    @property
    def untrusted(self) -> bool:
        """Whether the pool refuses results in memory that workers can still write into.

        A pool with a codec takes them, since the codec copies that memory when it makes the
        values.
        """
        return self.confinement is not None and self.data is None

    @property
    def title(self) -> str:
        """The name in logs and errors."""
        return f"{'pool' if self.serving is None else 'cluster'} {self.name}"


# Beside those of the record: options that clusters check in another way, and those of which only
# what is made of them is kept.
POOL_CHECKS: dict[str, checks.Check] = {
    **checks.table_of(EngineConfig),
    "workers": _workers,
    "worker_limits": machine.check_limits,
    "max_message_size": checks.at_least(1024).or_none(),
    "initializer": checks.CALLBACK,
    "initargs": checks.several("a tuple of arguments"),
    "codec": checks.optional(CHECKS["codec"]),
    "functions": checks.optional(
        checks.several("functions and names such as 'package.module:name'")
    ),
    "errors": checks.several("classes of exceptions"),
    "around": checks.optional(
        partial(checks.function, words="callable", named="takes a name such as")
    ),
    "sandbox": checks.optional(_sandbox),
    "propagate": anything,  # Propagation checks it when it looks for the variables
    "name": name_or_number("pool"),  # last, so that a refused pool takes no number
}


def pool_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the constructor of a pool was given, checked.

    Beside those of the table there are the options of its jobs, ``job_options``.

    Raises:
        TypeError: If one is of the wrong type.
        ValueError: If one is out of range, or two do not go together.
        UnsupportedPlatformError: If this machine lacks what one needs.
    """
    options = checks.apply(POOL_CHECKS, given)
    # An option of jobs that is one of the pool, too, is the default of its jobs.
    for_jobs = {name: given[name] for name in CHECKS if name in given}
    del for_jobs["codec"]
    options["job_options"] = changed(JobOptions(codec=options["codec"]), for_jobs)
    if options["sandbox"] is not None and options["worker_env"].common:
        raise ValueError(
            "worker_env is a mapping, and the sandbox says the whole environment: name the "
            "variables in Sandbox(env=...)"
        )
    if options["fresh"]:
        limits: WorkerLimits = options["worker_limits"]
        each = "fresh gives each job a worker of its own"
        if options["concurrency"] > 1:
            raise ValueError(f"{each}, and concurrency is {options['concurrency']}")
        if limits.max_jobs not in {None, 1}:
            raise ValueError(
                f"{each}, and max_jobs of worker_limits is {limits.max_jobs}"
            )
        options["worker_limits"] = replace(limits, max_jobs=1)
    if not options["max_surge"] and not options["max_unavailable"]:
        raise ValueError("max_surge and max_unavailable cannot both be 0")
    check_codec(
        options["codec"], functions=options["functions"], errors=options["errors"]
    )
    # If only the environment asks for it, there is a warning later, and no control socket.
    if given["control"] is True and not is_name(options["name"]):
        raise ValueError(
            f"with control=True commands find the pool by its name, which is {NAMES}, not "
            f"{options['name']!r}: give it such a name, or give one to control"
        )
    return options


def pool_config(given: Mapping[str, Any]) -> EngineConfig:
    """Return the configuration of a pool, from the arguments of its constructor.

    Raises:
        JobNotPicklableError: If the initializer, its arguments or the hook around jobs cannot
            be pickled.
        ValueError: If these are too large, if a context variable cannot be found, or if an option
            is out of range, or two do not go together.
        TypeError: If an option is of the wrong type.
        UnsupportedPlatformError: If this machine lacks what an option needs.
    """
    options = pool_options(given)
    initializer, around = options["initializer"], options["around"]
    codec, box, variables = options["codec"], options["sandbox"], options["propagate"]
    # This comes first.  It looks at __main__, which decides how the initializer is pickled below.
    worker = worker_config(options, options["max_message_size"] or MAX_PAYLOAD)
    data, confined, first = None, None, None
    if codec is not None:
        data = data_only.DataOnly(codec, options["functions"], options["errors"])
        schemas.check_name("initializer", initializer)
        schemas.check_name("around", around)
    if box is not None:
        # What workers import for themselves, and could not import in a sandbox.
        if options["worker_loop"] == "uvloop":
            options["preload"] += ("uvloop",)
        if codec is not None and find_spec("msgspec") is not None:
            options["preload"] += ("msgspec",)
        confined = confinement.Confinement(box, options["worker_limits"])
        worker = worker._replace(
            sandbox=confined.plan,
            script=confined.script,
            script_first=confined.script_first,
        )
    if initializer is not None:
        first = handover.Handover(initializer, options["initargs"])
    kept = EngineConfig.__dataclass_fields__.keys() & options.keys()
    return EngineConfig(
        **{name: options[name] for name in kept},
        worker=worker._replace(
            initializer=None if first is None else first.payload,
            concurrency=options["concurrency"],
            around=None if around is None else handover.packed_hook(around),
            codec=b"" if data is None else data.config,
            options=tuple(CHECKS),
        ),
        propagation=propagation.Propagation(variables) if variables else None,
        handover=first,
        data=data,
        confinement=confined,
    )


def worker_config(options: Mapping[str, Any], max_payload: int) -> WorkerConfig:
    """Return the configuration of the workers of a pool or a cluster with these options.

    Args:
        options: The options.
        max_payload: The most bytes that a frame may carry.
    """
    limits: WorkerLimits = options["worker_limits"]
    return WorkerConfig(
        sys_path=machine.module_path(),
        initializer=None,
        max_payload=max_payload,
        nice=limits.nice,
        cpus=limits.cpus,
        rlimits=tuple(limits.rlimits.items()),
        loop=options["worker_loop"],
        script=machine.main_script(),
        memory=limits.memory_at_start,
    )
