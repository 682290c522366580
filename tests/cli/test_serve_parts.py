"""The parts of ``asyncpool serve`` that need no workers."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import io
import json
import logging
import math
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TextIO

import pytest
import pytest_asyncio
import uvicorn
import watchfiles

from asyncpool import Cluster, WorkerLimits
from asyncpool._cli import logs, serve as serving
from asyncpool._cli.logs import (
    CommandLog,
    LogStream,
    TextFormat,
    cannot_be_loaded,
)
from asyncpool._cli.parameters import CommandError
from asyncpool._cli.serve import Serving, read_options
from asyncpool._cluster.log_messages import CHANGE_AWAITED, NOT_LOADED
from asyncpool._core.log_messages import ERROR_LINE, WORKER_CRASHED
from asyncpool.enums import CrashKind, NextStep
from asyncpool.errors import PoolBrokenError
from asyncpool.events import Crash
from tests.helpers import serves
from tests.helpers.gate import short_folder
from tests.helpers.inside import config_of
from tests.helpers.locked_folder import assert_waits, locked
from tests.helpers.log_table import ROWS, log_again
from tests.helpers.patience import PATIENCE, patience

ASKED = serving.Asked(target="app:app", interface="serve")


def plain(log: CommandLog | None = None, **asked: Any) -> Serving:
    """Return what serves with default options."""
    changed = dataclasses.replace(ASKED, **asked)
    return Serving(changed, {}, {"name": "app"}, log or CommandLog())


class Busy:
    """An operation whose address is in use for some time."""

    failures: list[OSError]

    def __init__(self, *_: object, **__: object) -> None:
        self.broken = None

    async def run(self) -> int:
        if self.failures:
            raise self.failures.pop()
        return 0


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(*failures: OSError) -> int:
        Busy.failures = [*failures]
        return asyncio.run(plain().run())

    monkeypatch.setattr(serving, "Cluster", lambda *_, **__: SimpleNamespace())
    monkeypatch.setattr(serving, "Operation", Busy)
    monkeypatch.setattr(serving, "_ADDRESS_EVERY", 0)
    return run


def test_an_address_that_becomes_free(run: Callable[..., int]) -> None:
    assert run(*(OSError(errno.EADDRINUSE, "in use") for _ in range(3))) == 0


def test_an_address_that_does_not(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_ADDRESS_PATIENCE", 0)
    with pytest.raises(OSError, match="in use"):
        run(*(OSError(errno.EADDRINUSE, "in use") for _ in range(1000)))
    assert len(Busy.failures) > 900


def test_another_error_is_one_at_once(run: Callable[..., int]) -> None:
    with pytest.raises(OSError, match="refused"):
        run(OSError(errno.EADDRINUSE, "in use"), OSError(errno.EACCES, "refused"))
    assert len(Busy.failures) == 1


# Changes of the code.


CHANGES: list[set[tuple[int, str]]] = []


async def by_hand(
    *_: object, stop_event: asyncio.Event, **__: object
) -> AsyncIterator[set[tuple[int, str]]]:
    """Yield the changes that the test makes."""
    while not stop_event.is_set():
        while CHANGES:
            yield CHANGES.pop()
        await asyncio.sleep(0)


async def change() -> None:
    """Change a file, and return when that was noticed."""
    CHANGES.append({(2, "/srv/app.py")})
    while CHANGES:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0)


class Told:
    """An operation that does what the test says; they are kept, oldest first."""

    made: list[Told]
    news: asyncio.Condition

    def __init__(self, cluster: dict[str, Any], **options: Any) -> None:
        self.crashed = cluster["on_crash"]
        self.ready = options["on_ready"]
        self.broken: PoolBrokenError | None = None
        self.control_path = None
        self.ending, self.reloading = asyncio.Event(), asyncio.Event()

    async def run(self) -> int:
        async with self.news:
            self.made.append(self)
            self.news.notify_all()
        await self.ending.wait()
        return 0

    def stop(self) -> None:
        self.ending.set()

    def reload_soon(self, why: str) -> None:
        assert why == "changes of app.py"
        self.reloading.set()

    @classmethod
    async def number(cls, count: int) -> Told:
        async with cls.news:
            await cls.news.wait_for(lambda: len(cls.made) == count)
        return cls.made[-1]


class Described(dict[str, Any]):
    """The options of a cluster."""

    def stats(self) -> Any:
        return SimpleNamespace(addresses=())

    def _service(self) -> Any:
        return SimpleNamespace(queues=SimpleNamespace(drop_messages=lambda: None))


@pytest.mark.asyncio
async def test_a_locked_folder_of_metrics_does_not_hold_up_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Busy.failures = []
    monkeypatch.setattr(serving, "Cluster", lambda *_, **__: Cluster(serves.talk))
    monkeypatch.setattr(serving, "Operation", Busy)
    with short_folder() as folder:
        metrics = f"unix:{folder / 'metrics'}"
        async with patience():
            with locked(folder):
                task = asyncio.create_task(plain(metrics=metrics).run())
                await assert_waits(folder, task)
            assert await task == 0
        assert os.listdir(folder) == []


@pytest_asyncio.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Task[int]]:
    monkeypatch.setattr(serving, "Cluster", lambda _, **options: Described(options))
    monkeypatch.setattr(serving, "Operation", Told)
    monkeypatch.setattr(watchfiles, "awatch", by_hand)
    Told.made, Told.news = [], asyncio.Condition()
    CHANGES.clear()
    log = CommandLog(json=True)
    log.setStream(stream := io.StringIO())
    task = asyncio.create_task(plain(log, reload_on_change=True).run())
    yield task
    log_again(stream.getvalue())
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.logs("serving", "code-changed")
@pytest.mark.asyncio
async def test_a_change_during_the_start_is_not_lost(
    watched: asyncio.Task[int],
) -> None:
    async with patience():
        operation = await Told.number(1)
        await change()
        for _ in range(10):  # it is noticed, and waits
            await asyncio.sleep(0)
        assert not operation.reloading.is_set()
        operation.ready()
        await operation.reloading.wait()
        # There was only one.
        operation.reloading.clear()
        await asyncio.sleep(0)
        assert not operation.reloading.is_set()
        await change()
        await operation.reloading.wait()
        operation.stop()
        assert await watched == 0


@pytest.mark.logs("not-loaded", "change-awaited", "server-gave-up")
@pytest.mark.asyncio
async def test_a_change_before_a_start_has_failed_is_not_lost(
    watched: asyncio.Task[int],
) -> None:
    async with patience():
        first = await Told.number(1)
        await change()
        first.crashed(crash())
        second = await Told.number(2)
        second.ready()
        # It has begun with what was changed.
        for _ in range(10):
            await asyncio.sleep(0)
        assert not second.reloading.is_set()
        second.broken = PoolBrokenError(
            reason="3 starts failed", crashes=(crash(),), retry_after=None
        )
        second.stop()
        assert await watched == 0


# What is asked for.


def planned(monkeypatch: pytest.MonkeyPatch, *args: str) -> Serving:
    """Return what would serve."""
    plans: list[Serving] = []
    monkeypatch.setattr(serving, "_run", lambda plan, _: plans.append(plan))
    with pytest.raises(SystemExit):
        serving.serve_command.main(["app:app", *args])
    (plan,) = plans
    return plan


def test_a_service_has_the_options_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = (
        "--max-surge 2 --launcher spawn --nice 3 --max-connections 400 --max-age 5.5"
    )
    plan = planned(monkeypatch, *words.split(), "--ping-timeout", "0")
    config = config_of(Cluster("app:app", **plan.cluster))
    assert (config.max_surge, config.fork, config.ping_timeout) == (2, False, None)
    assert config.worker.nice == 3
    assert config.worker_limits == WorkerLimits(max_jobs=400, max_age=5.5, nice=3)


def test_options_come_from_the_command_line_variables_and_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        'bind = [":8001", ":8002"]\nworkers = 2\nmax-surge = 3\nping-timeout = 0\n'
        'header-size = "8K"\nbody-size = "2M"\naccess-log = true\ndrain-timeout = 7\nnice = 1\n'
    )
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    monkeypatch.setenv("ASYNCPOOL_SERVE_MAX_SURGE", "5")
    monkeypatch.setenv("ASYNCPOOL_SERVE_PRELOAD", "json csv")
    monkeypatch.setenv("ASYNCPOOL_SERVE_NICE", "2")
    monkeypatch.setenv("ASYNCPOOL_SERVE_LOOP", "uvloop")
    monkeypatch.setenv("ASYNCPOOL_SERVE_OPTION", "lifespan=off http=h11")
    plan = planned(monkeypatch, "--config", str(path), "--nice", "3")
    found = plan.cluster
    assert (found["bind"], found["preload"]) == ((":8001", ":8002"), ("json", "csv"))
    assert (found["workers"], found["max_surge"], found["ping_timeout"]) == (4, 5, None)
    assert (found["drain_timeout"], found["worker_limits"].nice) == (7.0, 3)
    assert (plan.options["header_size"], plan.options["access_log"]) == (8192, True)
    assert plan.options["body_size"] == 2 << 20
    assert (found["worker_loop"], plan.options["lifespan"]) == ("uvloop", "off")
    monkeypatch.setenv("ASYNCPOOL_SERVE_WORKERS", "6")
    monkeypatch.setenv("ASYNCPOOL_SERVE_CONFIG", str(path))
    assert planned(monkeypatch).cluster["workers"] == 6


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("worker = 2", "there is no option worker"),
        ("workers = ", "Invalid value"),
        ("workers = 0", "0 is not in the range"),
        ("max-age = true", "'True' is no number of seconds, such as 30 or 0.5"),
        ("nice = [1]", "'[1]' is not a valid integer"),
        ("[max-surge]", "'{}' is not a valid integer"),
    ],
)
def test_a_file_of_options_is_checked(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        serving.serve_command.main(["app:app", "--config", str(path)])
    assert ended.value.code == 2
    assert problem in " ".join(capsys.readouterr().err.split())


# What is printed.


def test_nobody_reads_what_is_printed() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    log = CommandLog()
    log.setStream(Gone())
    log.tell(CHANGE_AWAITED, {})  # must not raise


class Timeless(TextFormat):
    """Text whose times a test need not know."""

    def formatTime(self, *_: object) -> str:  # noqa: N802 - logging's name
        return "now"


def printed(tell: Callable[[CommandLog], object], *, level: int = logging.INFO) -> str:
    """Return what is printed of what is logged."""
    log = CommandLog()
    log.setStream(stream := io.StringIO())
    log.setFormatter(Timeless())
    with log.on(level):
        tell(log)
    lines = stream.getvalue().splitlines(keepends=True)
    return "".join(line.removeprefix("now ") for line in lines)


def worker(line: str, name: str = "worker 7 in slot 0") -> None:
    extra = {"pool": "app", "slot": 0, "generation": 1, "pid": 7, "stream": "stderr"}
    logger = logging.getLogger("asyncpool.worker")
    ERROR_LINE.log(logger, extra, label=name, line=line, trusted=True)


def test_lines_of_workers_are_printed_as_they_are() -> None:
    def tell(log: CommandLog) -> None:
        worker("hello 100%")
        logging.getLogger("some.app").info("%d requests", 3)
        logging.getLogger("some.app").debug("no news")
        fields = {"name": "shop", "levelno": 30, "levelname": "WARNING", "process": 7}
        record = logging.makeLogRecord({**fields, "msg": "sold 3\nout", "pid": 7})
        logging.getLogger("shop").handle(record)

    assert printed(tell).splitlines() == [
        "worker 7 in slot 0: hello 100%",
        "INFO some.app: 3 requests",
        "WARNING shop [7]: sold 3",
        "    out",
    ]


def crash(**file_changes: Any) -> Crash:
    """Log a crash, and return it."""
    known: dict[str, Any] = {
        "slot": 0,
        "generation": 1,
        "pid": 7,
        "exit_code": 1,
        "signal": None,
        "kind": CrashKind.FAILED_START,
        "uptime": 0.1,
        "job_id": None,
        "attempt": 0,
        "detail": "serve failed: OSError: no",
        "stderr_tail": (),
        "next_step": NextStep.LEAVE_EMPTY,
    }
    crash = Crash(**{**known, **file_changes})
    WORKER_CRASHED.log(
        logging.getLogger("asyncpool"),
        dict.fromkeys(ROWS["worker-crashed"].keys),
        title="app",
        crash=crash,
        then=crash.next_step_text,
    )
    return crash


@pytest.mark.logs("log-unread")
def test_what_is_left_out_is_told_as_json() -> None:
    log = CommandLog(json=True)
    log_again(text := logs._gap(log, 12))
    unread = json.loads(text)
    assert (unread["logger"], unread["records"]) == ("asyncpool", 12)


def in_json(tell: Callable[[CommandLog], object]) -> list[dict[str, Any]]:
    log = CommandLog(json=True)
    log.setStream(stream := io.StringIO())
    with log.on(logging.INFO):
        tell(log)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_records_as_json() -> None:
    def tell(log: CommandLog) -> None:
        worker("hello \x1b 100%")
        worker('{"mine": [1]}')
        worker("{no json}")
        try:
            os.environ["LOST-"]
        except KeyError:
            logging.getLogger("shop").exception("sold\nout", extra={"order": 5})
        logging.getLogger("shop").info("by", extra={"pid": 7, "path": Path("/x")})
        log.tell(NOT_LOADED, {"target": "app:app", "reason": "gone"}, lines="\n  x")

    found = in_json(tell)
    times = [entry.pop("time") for entry in found if "mine" not in entry]
    assert len(times) == 5
    assert all(re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{3}Z", time) for time in times)
    failed = found[3]
    assert failed.pop("exception").endswith("KeyError: 'LOST-'")
    printed: dict[str, Any] = {"logger": "asyncpool.worker", "pool": "app"}
    printed |= {"slot": 0, "generation": 1, "pid": 7, "stream": "stderr"}
    printed |= {"level": "WARNING", "message_id": "error-line"}
    shop = {"level": "INFO", "logger": "shop"}
    assert found == [
        printed | {"message": "hello \x1b 100%"},
        {"mine": [1]},
        printed | {"message": "{no json}"},
        {"level": "ERROR", "logger": "shop", "message": "sold\nout", "order": 5},
        shop | {"message": "by", "pid": 7, "path": "/x"},
        {
            "level": "ERROR",
            "logger": "asyncpool",
            "message": "app:app cannot be served: gone\n  x",
            "message_id": "not-loaded",
            "target": "app:app",
            "reason": "gone",
        },
    ]


def test_fields_of_json_are_the_applications_only_where_they_are_free() -> None:
    mine = {"time": 0.5, "level": "gold", "logger": "mine", "slot": 9, "who": "me"}
    more = {"exception": "none", "stack": math.nan, "extra_time": ValueError("x")}

    def tell(_: CommandLog) -> None:
        logging.getLogger("shop").info("by", extra=mine | more | {"raw": b"x"})

    (found,) = in_json(tell)
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{3}Z", found.pop("time"))
    assert found == {
        "level": "INFO",
        "logger": "shop",
        "message": "by",
        "extra_time": 0.5,
        "extra_level": "gold",
        "extra_logger": "mine",
        "slot": 9,
        "who": "me",
        "extra_exception": "none",
        "extra_stack": "nan",
        "extra_extra_time": "x",
        "raw": "b'x'",
    }


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_only_python_takes_for_json_is_a_message(number: str) -> None:
    line = f'{{"D": [{number}]}}'
    (found,) = in_json(lambda _: worker(line))
    assert found["message"] == line
    assert found["logger"] == "asyncpool.worker"


def test_code_that_cannot_be_loaded_is_told_of_when_all_has_ended() -> None:
    def tell(log: CommandLog) -> None:
        log.starting = True
        worker("before")
        assert cannot_be_loaded(crash())
        assert cannot_be_loaded(
            crash(
                pid=None, exit_code=None, detail="'m' cannot be preloaded", final=True
            )
        )
        assert not cannot_be_loaded(crash(exit_code=7, detail=""))
        assert not cannot_be_loaded(crash(pid=8, slot=1, kind=CrashKind.CRASH))
        log.starting = False
        crash()

    app = "WARNING asyncpool: app: worker"
    step = "not replaced: there are enough other workers"
    assert printed(tell).splitlines() == [
        "worker 7 in slot 0: before",
        f"{app} 7 in slot 0 exited with status 7 (failed start); {step}",
        f"{app} 8 in slot 1 exited with status 1: serve failed: OSError: no; {step}",
        (
            f"{app} 7 in slot 0 exited with status 1 (failed start): "
            f"serve failed: OSError: no; {step}"
        ),
    ]


def test_uvicorn_is_not_to_tell_of_each_worker() -> None:
    def tell(_: CommandLog) -> None:
        logging.getLogger("uvicorn.error").info("Started server process")
        logging.getLogger("uvicorn.error").warning("trouble")

    # A server of another test, in this process, may have set it.
    logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)
    assert printed(tell) == "WARNING uvicorn.error: trouble\n"
    assert printed(tell, level=logging.DEBUG).startswith("INFO uvicorn.error: Started")
    assert logging.getLogger("uvicorn.error").level == logging.NOTSET
    assert logging.getLogger().level == logging.WARNING


# A log whose reader stops, and goes on.


LINE = f"{'x' * 99}\n"


class Pipe(NamedTuple):
    """A pipe, and a stream into it."""

    fd: int
    stream: TextIO
    size: int

    def read(self, size: int) -> str:
        """Read so many bytes, and wait for them."""
        parts = []
        while size:
            parts.append(os.read(self.fd, size))
            size -= len(parts[-1])
        return b"".join(parts).decode()


@pytest.fixture
def full() -> Iterator[Pipe]:
    """Yield a pipe that takes no more before it is read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    size = 0
    while True:
        try:
            size += os.write(writer, bytes(4096))
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    with os.fdopen(writer, "w") as stream:
        yield Pipe(reader, stream, size)
    os.close(reader)


def gap(count: int) -> str:
    return f"({count})\n"


def test_nobody_waits_for_a_reader_that_has_stopped(
    full: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_MOST", 1000)
    log = LogStream(full.stream.fileno(), gap)
    for _ in range(100):
        log.write(LINE)
    full.read(full.size)
    assert full.read(1000) == LINE * 10
    # The last one counts until it is written, which this thread cannot see.
    while log._size:
        pass
    log.write("after\n")
    assert full.read(len("(90)\nafter\n")) == "(90)\nafter\n"
    log.close()


def test_what_is_left_out_last_is_told_at_the_end(
    full: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_MOST", 100)
    log = LogStream(full.stream.fileno(), gap)
    log.write(LINE)
    log.write(LINE)
    full.read(full.size)
    log.close()
    assert full.read(104) == f"{LINE}(1)\n"


def test_the_end_does_not_wait_for_a_reader_that_has_stopped(full: Pipe) -> None:
    log = LogStream(full.stream.fileno(), gap)
    log.write("before\n")
    log.close(0.0)
    full.read(full.size)
    assert full.read(7) == "before\n"


def test_a_reader_that_is_gone_costs_lines_and_no_more() -> None:
    for waits in (False, True):
        reader, writer = os.pipe()
        os.close(reader)
        log = LogStream(writer, gap, waits=waits)
        log.write(LINE)
        log.write(LINE)
        log.close()
        assert not log._size
        os.close(writer)


def test_a_worker_waits_for_a_reader_that_reads_on(
    full: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_MOST", 1000)
    log = LogStream(full.stream.fileno(), gap, waits=True)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(full.read, full.size + 1000 * len(LINE))
        for _ in range(1000):
            log.write(LINE)
        log.close()
        assert reading.result()[full.size :] == LINE * 1000


def test_nor_does_a_worker_wait_for_one_that_does_not(
    full: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE", 0.05)
    monkeypatch.setattr(logs, "_MOST", 100)
    log = LogStream(full.stream.fileno(), gap, waits=True)
    for _ in range(1000):
        log.write(LINE)
    full.read(full.size)
    log.close()
    assert full.read(len(LINE) + 6) == f"{LINE}(999)\n"


def test_lines_of_several_processes_stay_whole() -> None:
    reader, writer = os.pipe()
    children = []
    for letter in "abc":
        if not (pid := os.fork()):
            log = LogStream(writer, gap, waits=letter != "c")
            for size in range(200):
                log.write(f"{letter * 100 * size}{size}\n")
            log.close(PATIENCE)
            os._exit(0)
        children.append(pid)
    os.close(writer)
    with os.fdopen(reader) as stream:
        found = sorted(stream.read().splitlines())
    wanted = [f"{it * 100 * size}{size}" for it in "abc" for size in range(200)]
    assert found == sorted(wanted)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]


# Options of uvicorn: their types, and what is refused before anything starts.


def read(*words: str, password_file: str | None = None, **given: Any) -> dict[str, Any]:
    return read_options(words, given, password_file=password_file)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *((f"proxy_headers={text}", True) for text in ("True", "yes", "ON", "1")),
        *((f"server_header={text}", False) for text in ("False", "no", "off", "0")),
        ("limit_concurrency=5", 5),
        ("ws_ping_interval=2.5", 2.5),
        ("ssl_keyfile_password=1234", "1234"),
        ("root_path=/api", "/api"),
        ("root_path=", ""),
        ('headers=[["x-shop", "1"]]', [["x-shop", "1"]]),
        ("lifespan=off", "off"),
        ("forwarded_allow_ips=10.0.0.1", "10.0.0.1"),
        ("http=h11", "h11"),
        ("limit_max_requests=7", 7),
    ],
)
def test_a_value_has_the_type_of_its_option(word: str, value: object) -> None:
    assert read(word) == {word.partition("=")[0]: value}


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("limit_concurrency=abc", "limit_concurrency: 'abc' is not a valid integer"),
        ("limit_max_requests=1.5", "limit_max_requests: '1.5' is not a valid integer"),
        ("ws_ping_interval=soon", "ws_ping_interval: 'soon' is not a valid float"),
        ("proxy_headers=maybe", "proxy_headers: 'maybe' is not a valid boolean"),
        ("lifespan=later", "lifespan: 'later' is not one of 'auto', 'on', 'off'"),
        ("headers=x", "headers is a list or an object, in JSON, not 'x'"),
        ("uds=/x", "--option: uds is the command's: --bind unix:PATH"),
        ("app=x", f"uvicorn {uvicorn.__version__} has no app"),
        ("env_file=/nowhere", "env_file: there is no file /nowhere"),
        ("ssl_certfile=/nope.pem", "ssl_certfile: there is no file /nope.pem"),
    ],
)
def test_what_has_not_is_refused(word: str, text: str) -> None:
    with pytest.raises(CommandError) as caught:
        read(word)
    assert text in caught.value.message


def test_a_certificate_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cert.pem"
    path.write_text("no certificate")
    with pytest.raises(CommandError) as caught:
        read(ssl_certfile=str(path))
    assert caught.value.message.startswith(
        f"{path}: the certificate and its key cannot be loaded: "
    )
    with pytest.raises(
        CommandError, match="a key needs its certificate: --ssl-certfile FILE"
    ):
        read(ssl_keyfile=str(path))


def test_a_password_is_read_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        ssl.SSLContext, "load_cert_chain", lambda _, *args: loaded.append(args)
    )
    secret = tmp_path / "secret"
    secret.write_text("top\nthe rest\n")
    path = str(secret)
    found = read(password_file=path, ssl_certfile=path, ssl_keyfile=path)
    assert found["ssl_keyfile_password"] == "top"
    assert loaded == [(path, path, "top")]
