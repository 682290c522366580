"""What comes from either end of a shared pool is bounded and checked, whoever sends it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import pickle
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import pytest

from asyncpool import __version__
from asyncpool._engine.loop import Threads
from asyncpool._remote.carrier import UnixCarrier
from asyncpool._remote.messages import (
    PLAIN as PLAIN_CALL,
    Kind,
    Message,
    greeting,
    pack_batches,
    pack_greeting,
    pack_question,
    unpack_batch,
)
from asyncpool._remote.objects import load_own, pack_own
from asyncpool._wire.frames import HEADER_SIZE, FrameKind, header
from asyncpool._wire.messages import pack_numbers
from asyncpool.enums import Delivery
from asyncpool.errors import NodeLostError, ProtocolError, WorkerCrashedError
from asyncpool.pool import Pool
from asyncpool.sharedpool import PoolServer, connect
from asyncpool.sharedpool._server import MOST_STRANGERS
from tests.helpers import jobs
from tests.helpers.crashes import crash_with
from tests.helpers.gate import short_folder
from tests.helpers.inside import connect_within, waiting_jobs
from tests.helpers.locked_folder import assert_waits, locked
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import case
from tests.helpers.shared_pools import server

pytestmark = ONE_LOOP

logged = partial(pytest.param, marks=pytest.mark.logs("notes-unreadable"))

NOBODY = 65534

# A JSON text that ends nowhere.
DEEP = (100_000).to_bytes(4) + b"[" * 100_000
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


class Raw:
    """One end of a connection, which says whatever a test wants."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader, self.writer = reader, writer

    async def greet(self) -> None:
        """Greet as a client does that may come in."""
        self.say(pack_greeting(greeting(__version__, "pickle")))
        assert json.loads(await self.hear())["credits"]

    def say(self, piece: bytes) -> None:
        self.writer.write(header(FrameKind.BATCH, len(piece)) + piece)

    def say_messages(self, *messages: Message) -> None:
        for batch in pack_batches(map(Message.pack, messages)):
            self.say(batch)

    async def hear(self) -> bytes:
        """Return the next batch; frames about memory have no payload."""
        while True:
            head = await self.reader.readexactly(HEADER_SIZE)
            piece = await self.reader.readexactly(int.from_bytes(head[-8:]))
            if head[1] == FrameKind.BATCH:
                return piece

    async def cut(self) -> None:
        """Wait until the other end has cut the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def raw_client(path: Path) -> AsyncGenerator[Raw]:
    raw = Raw(*await asyncio.open_unix_connection(path))
    try:
        yield raw
    finally:
        await raw.close()


FUNCTION = Message(Kind.FUNCTION, function=1, payload=b"f\0")
PLAIN = json.dumps({"limits": {}}).encode()
OPTIONS = Message(Kind.OPTIONS, options=1, payload=PLAIN)
NAMED = FUNCTION._replace(payload=b"\x1b" + b"f" * 1000 + b"\0")
LARGE = 10**400
FALSE_OPTIONS: list[Any] = [
    None,
    {},
    {"limits": {"timeout": LARGE}},
    {"limits": {"heartbeat_timeout": LARGE}},
    {"limits": {"deadline": LARGE}},
    {"limits": {"queue_timeout": -1}},
    {"limits": {"on_cancel": []}},
    {"limits": {}, "via": "stream"},
    {"limits": {}, "leased": True},
]


def job(number: int, **others: int) -> Message:
    return Message(
        Kind.JOB, number, **{"function": 1, "options": 1} | others, payload=bytes(4)
    )


def asked(number: int) -> Message:
    question = pack_question("session", b"", {"timeout": None})
    return Message(Kind.ASK, number, payload=question)


BREACHES: list[tuple[list[Message], str]] = [
    ([Message(Kind.VALUE, 1)], "a client sent a VALUE"),
    ([job(1)], "1"),
    ([FUNCTION, job(1)], "1"),
    ([NAMED, OPTIONS, job(1), job(1)], rf"it had 1 jobs here (1 x \x1b{'f' * 196})"),
    ([FUNCTION, OPTIONS, *[job(n) for n in range(1500)]], "more than 1024 jobs"),
    ([FUNCTION, OPTIONS, *[job(5)] * 200], "job 5 twice"),
    ([Message(Kind.OPTIONS, payload=b"{")], "Expecting"),
    # Too deep, or not at its end: which of both, depends on the Python.
    ([Message(Kind.OPTIONS, payload=b"[" * 60_000)], "cut off"),
    ([Message(Kind.OPTIONS, payload=b'{"limits": {"timeout": -1}}')], "timeout"),
    ([Message(Kind.OPTIONS, payload=b'{"limits": {"evil": 1}}')], "evil"),
    ([Message(Kind.OPTIONS, payload=b'{"limits": {}, "key": "k"}')], "key of type"),
    # JSON has ints that no clock can count.
    (
        [Message(Kind.OPTIONS, payload=b'{"limits": {"timeout": %d}}' % LARGE)],
        "no time",
    ),
    (
        [Message(Kind.OPTIONS, payload=b'{"limits": {"cancel_grace": %d}}' % LARGE)],
        "no time",
    ),
    (
        [Message(Kind.OPTIONS, payload=b'{"limits": {}, "via": "broadcast"}')],
        "a job for 'broadcast'",
    ),
    ([Message(Kind.TRACE, payload=b'{"traceparent": 1}')], "other things"),
    ([FUNCTION, OPTIONS, job(1, begun=1 << 16)], "job 1 with false numbers"),
    ([FUNCTION, OPTIONS, job(1)._replace(wait=-1.0)], "job 1 with false numbers"),
    ([FUNCTION, OPTIONS, job(1)._replace(deadline=nan)], "job 1 with false numbers"),
    ([asked(n) for n in range(300)], "256 at once"),
]


@pytest.mark.logs("client-refused")
async def test_a_client_that_breaks_the_rules_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pool.sock"
    async with patience(), Pool(1) as pool, PoolServer(pool, path):
        async with pool.worker():  # so that what has begun stays
            for messages, why in BREACHES:
                with case(why):
                    caplog.clear()
                    async with raw_client(path) as raw:
                        await raw.greet()
                        raw.say_messages(*messages)
                        await raw.cut()
                    text = f"a client (process {os.getpid()}) is cut off: "
                    assert text in caplog.text
                    assert why in caplog.text
        assert await pool.submit(jobs.square, 2) == 4


QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    *[("broadcast", {"name": "f", "options": options}) for options in FALSE_OPTIONS],
    ("broadcast", {"name": "f"}),
    ("session", {"timeout": LARGE}),
]


async def test_a_question_with_false_options_is_refused(
    pool: Pool, tmp_path: Path
) -> None:
    path, before = tmp_path / "pool.sock", pool.stats().submitted
    async with patience(), PoolServer(pool, path), raw_client(path) as raw:
        await raw.greet()
        for number, (what, details) in enumerate(QUESTIONS, 1):
            with case(what, details):
                question = pack_question(what, b"", details)
                raw.say_messages(Message(Kind.ASK, number, payload=question))
                [answer] = unpack_batch(await raw.hear())[1]
                assert (answer.kind, answer.job) == (Kind.ANSWER, number)
                assert load_own(answer.payload)[0] is False
        assert await pool.submit(jobs.square, 2) == 4
        assert pool.stats().submitted == before + 1


@pytest.mark.logs("client-refused")
async def test_a_greeting_that_is_none_is_answered_by_a_refusal(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "pool.sock"
    older = pack_greeting(greeting(__version__, "pickle") | {"python": "3.9"})
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    told = f"the agent has Python {here}, and the client 3.9: both need the same"
    wrong = (b"", b"{}", b"[" * 5000, b"\xff" * 100, b'{"python": 5}', older)
    async with patience(), PoolServer(pool, path):
        for piece in wrong:
            with case(piece):
                async with raw_client(path) as raw:
                    raw.say(piece)
                    refused = json.loads(await raw.hear())["refused"]
                    assert (refused == told) is (piece is older)
                    await raw.cut()


@pytest.mark.logs("client-refused")
async def test_a_greeting_has_a_bound_and_so_have_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pool.sock"
    async with patience(), Pool(1) as pool, PoolServer(pool, path, max_clients=1):
        async with raw_client(path) as raw:
            raw.writer.write(header(FrameKind.BATCH, 1 << 40))
            await raw.cut()
        async with connect(f"unix:{path}") as one:
            with pytest.raises(ProtocolError, match="1 clients use this pool already"):
                await connect(f"unix:{path}").start()
            assert await one.submit(jobs.square, 2) == 4
            assert (await one.stats()).refused_clients == 2
    found = [vars(it) for it in caplog.records if "jobs" in vars(it)]
    assert [(it["pid"], it["jobs"]) for it in found[:2]] == [(os.getpid(), 0)] * 2
    assert found[1]["reason"] == "1 clients use this pool already"


@pytest.mark.logs("client-refused")
async def test_a_client_that_takes_no_results_gets_no_end_of_jobs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pool.sock"
    async with (
        patience(),
        Pool(1) as pool,
        PoolServer(pool, path),
        raw_client(path) as raw,
    ):
        await raw.greet()
        raw.say_messages(FUNCTION, OPTIONS)
        numbers = itertools.count(1)
        while not pool.stats().refused_clients:
            ended = pool.stats().completed + 500
            raw.say_messages(*(job(next(numbers)) for _ in range(500)))
            while (stats := pool.stats()).completed < ended:
                if stats.refused_clients:
                    break
                await asyncio.sleep(0)
    assert "the client has taken none of " in caplog.text


async def test_clients_wait_while_too_many_others_say_nothing(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "pool.sock"
    async with patience(), PoolServer(pool, path), contextlib.AsyncExitStack() as stack:
        silent = [
            await stack.enter_async_context(raw_client(path))
            for _ in range(MOST_STRANGERS)
        ]
        late = await stack.enter_async_context(raw_client(path))
        late.say(pack_greeting(greeting(__version__, "pickle")))
        heard = asyncio.ensure_future(late.hear())
        await asyncio.wait([heard], timeout=0.2)
        assert not heard.done()
        await silent[0].close()
        assert json.loads(await heard)["credits"]


@pytest.mark.logs("client-not-accepted")
async def test_clients_wait_while_the_server_can_open_no_file(
    pool: Pool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, accept = tmp_path / "pool.sock", socket.socket.accept
    refusals = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def scarce(sock: socket.socket) -> Any:
        if refusals:
            raise refusals.pop()
        return accept(sock)

    async with patience(), PoolServer(pool, path):
        monkeypatch.setattr(socket.socket, "accept", scarce)
        async with connect(f"unix:{path}") as one:
            assert await one.submit(jobs.square, 2) == 4
    assert "the shared pool cannot accept a connection: " in caplog.text


@contextlib.asynccontextmanager
async def false_agent(*answers: bytes) -> AsyncGenerator[tuple[str, list[Raw]]]:
    """Listen as an agent does, and answer the greeting with something else."""
    raws: list[Raw] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = Raw(reader, writer)
        raws.append(raw)
        await raw.hear()
        for answer in answers:
            raw.say(answer)
        if not answers:
            await raw.close()

    with short_folder() as folder:
        path = str(folder / "false")
        listening = await asyncio.start_unix_server(serve, path)
        try:
            yield f"unix:{path}", raws
        finally:
            listening.close()
            for raw in raws:
                await raw.close()
            await listening.wait_closed()


GREETING = greeting(__version__, "pickle") | {
    "node": "false",
    "credits": 1 << 40,
    "lanes": 1,
    "stamp": 1,
    "fresh": False,
    "counts_jobs": False,
    "max_payload": 1 << 30,
}


NO_AGENT = [
    (),
    (b"no",),
    (b"[]",),
    *[
        (pack_greeting(GREETING | wrong),)
        for wrong in (
            {"node": 1},
            {"credits": -1},
            {"credits": 0},
            {"lanes": None},
            {"stamp": 1 << 64},
            {"stamp": nan},
            {"fresh": 0},
        )
    ],
]


@pytest.mark.parametrize("answers", NO_AGENT)
async def test_what_is_no_agent_is_refused(answers: tuple[bytes, ...]) -> None:
    async with patience(), false_agent(*answers) as (address, _):
        with pytest.raises(ProtocolError, match="does not answer as an agent does"):
            await connect(address).start()


UNREADABLE = [
    Message(Kind.FAILED, 1, payload=pack_own(5)),
    Message(Kind.VALUE, 1, payload=b"\0\0\0\x09"),
]


@pytest.mark.parametrize(
    "message",
    [
        *UNREADABLE,
        Message(Kind.JOB, 1),
        Message(Kind.ITEM, 1, payload=bytes(4)),
        Message(Kind.FAILED, 1, payload=b"cos\nsystem\n(S'false'\ntR."),
        Message(Kind.FAILED, 1, payload=DEEP),
        Message(Kind.EVENT, payload=DEEP),
        Message(Kind.EVENT, payload=b"x"),
        Message(Kind.EVENT, payload=pack_own("no event")),
        Message(Kind.WAITS, payload=b"123"),
        Message(Kind.BEGAN, payload=b"123"),
        Message(Kind.FOUND, 1),
    ],
)
@pytest.mark.logs("node-lost")
async def test_an_agent_that_breaks_the_rules_is_lost(
    message: Message, caplog: pytest.LogCaptureFixture
) -> None:
    """One that tells of an end, though not how, has begun the job: nobody must call it again."""
    async with (
        patience(),
        false_agent(pack_greeting(GREETING)) as (address, raws),
        connect(address) as pool,
    ):
        sent, other = pool.submit(jobs.square, 2), pool.submit(jobs.square, 3)
        await raws[0].hear()
        raws[0].say_messages(message)
        with pytest.raises(NodeLostError, match="is lost: ") as lost:
            await sent
        with pytest.raises(NodeLostError) as unknown:
            await other
    assert unknown.value.delivery is Delivery.UNKNOWN
    if message in UNREADABLE:
        assert lost.value.delivery is Delivery.STARTED
    [record] = [vars(it) for it in caplog.records if "node" in vars(it)]
    assert record["pool"] == address
    assert record["node"] == lost.value.node
    assert record["reason"] in {lost.value.reason, "the end of 1 cannot be read"}
    assert isinstance(lost.value.__cause__, Exception)
    assert str(lost.value.__cause__).startswith(lost.value.reason)


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"?",
        b"L",
        b"L" + b"\xff" * 200,
        b"R" + PLAIN_CALL + b"no pickle",
        logged(b"R"),
        logged(b"R\0\0\0\x09"),
        logged(b"R" + PLAIN_CALL + pickle.dumps(5)),
    ],
)
async def test_what_is_told_of_a_dead_chunk_and_cannot_be_read_counts_as_begun(
    told: bytes,
) -> None:
    crash = crash_with(job_id=1, attempt=1)
    crashed = WorkerCrashedError(
        job_id=1, crashes=(crash,), delivery=Delivery.STARTED, function="square"
    )
    async with (
        patience(),
        false_agent(pack_greeting(GREETING)) as (address, raws),
        connect(address) as pool,
    ):
        squares = pool.map(jobs.square, [1, 2, 3], chunksize=3, buffersize=12)
        mapped = asyncio.ensure_future(squares.outcomes())
        await raws[0].hear()
        raws[0].say_messages(
            Message(Kind.BEGAN, payload=pack_numbers([1])),
            Message(Kind.FOUND, 1, payload=told),
            Message(Kind.FAILED, 1, payload=pack_own(crashed)),
        )
        for one in await mapped:
            assert type(one.error) is WorkerCrashedError
            assert one.error.delivery is Delivery.STARTED


async def test_a_bug_in_one_end_ends_the_connection_at_both() -> None:
    loop, reports = asyncio.get_running_loop(), list[dict[str, Any]]()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    threads = Threads(loop)
    here, there = socket.socketpair()
    one, two = UnixCarrier(here, threads), UnixCarrier(there, threads)
    gone = asyncio.Event()
    two.on_bytes, one.on_gone = json.loads, lambda _: gone.set()
    one.send(b"no JSON")
    async with patience():
        await gone.wait()
        await two.ended
    await threads.close()
    loop.set_exception_handler(handler)
    assert [type(report["exception"]) for report in reports] == [json.JSONDecodeError]


async def test_no_more_jobs_are_sent_than_a_client_may_lose() -> None:
    async with patience(), false_agent(pack_greeting(GREETING)) as (address, _):
        pool = connect(address)
        await pool.start()
        for number in range(5000):
            pool.submit(jobs.square, number)
        assert waiting_jobs(pool) == 5000 - 4096
        await pool.close(finish="none")


async def test_a_locked_folder_does_not_hold_up_the_loop(pool: Pool) -> None:
    async def work(path: Path) -> int:
        async with PoolServer(pool, path), connect(f"unix:{path}") as client:
            return await client.submit(jobs.square, 2)

    with short_folder() as folder:
        with locked(folder):
            working = asyncio.create_task(work(folder / "pool.sock"))
            await assert_waits(folder, working)
        assert await working == 4


def as_nobody(run: Callable[[], object]) -> int:
    """Have a process of another user do something; return its pid."""
    if pid := os.fork():
        return pid
    os.setuid(NOBODY)
    with contextlib.suppress(OSError):
        run()
    os._exit(0)


@as_root
async def test_a_process_of_another_user_is_refused() -> None:
    reading, writing = os.pipe()

    def greet() -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            hello = pack_greeting(greeting(__version__, "pickle"))
            sock.send(len(hello).to_bytes(8) + hello)
            os.write(writing, sock.recv(100))

    with short_folder() as folder:
        folder.chmod(0o755)
        path = folder / "pool.sock"
        async with patience(), Pool(1) as pool, PoolServer(pool, path):
            assert path.stat().st_mode & 0o777 == 0o600
            path.chmod(0o666)  # as if the file protected nothing
            pid = as_nobody(greet)
            os.close(writing)
            assert await asyncio.to_thread(os.read, reading, 100) == b""
            os.close(reading)
            await asyncio.to_thread(os.waitpid, pid, 0)
            async with connect(f"unix:{path}") as own:
                assert await own.submit(jobs.square, 2) == 4


@as_root
async def test_an_agent_of_another_user_gets_no_jobs() -> None:
    reading, writing = os.pipe()

    def listen() -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
            path.chmod(0o666)
            sock.listen()
            os.write(writing, b"l")
            while True:
                sock.accept()[0].recv(100)

    with short_folder() as folder:
        folder.chmod(0o777)
        path = folder / "false"
        pid = as_nobody(listen)
        os.close(writing)
        try:
            assert await asyncio.to_thread(os.read, reading, 1)
            os.close(reading)
            with pytest.raises(PermissionError, match="another user listens at"):
                await connect(f"unix:{path}").start()
        finally:
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitpid, pid, 0)


async def test_nothing_of_it_is_inherited_by_workers(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    async with patience(), Pool(1, launcher="spawn") as pool:
        before = await pool.submit(jobs.stray_descriptors)
        async with PoolServer(pool, path), connect(f"unix:{path}") as client:
            await pool.roll()  # the new worker starts with all that open
            after = await client.submit(jobs.stray_descriptors)
    # Each worker has sockets and pipes of its own, so only their kinds can be compared.
    assert [name.partition(":")[0] for name in after] == [
        name.partition(":")[0] for name in before
    ]


async def test_a_function_that_the_agent_cannot_import_fails_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here_77.py").write_text("def f(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here_77  # type: ignore[import-not-found]

    path = tmp_path / "sub" / "pool.sock"
    path.parent.mkdir()
    with server(path):
        async with patience(), connect(f"unix:{path}") as client:
            with pytest.raises(ModuleNotFoundError, match="only_here_77"):
                await client.submit(only_here_77.f)
            assert await client.submit(jobs.square, 2) == 4


@pytest.mark.parametrize("is_left", [True, False])
async def test_an_address_where_nobody_is_is_told_with_the_way_out(
    tmp_path: Path, *, is_left: bool
) -> None:
    path = tmp_path / "pool.sock"
    if is_left:  # by a server that was killed
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    with pytest.raises(OSError, match=f"asyncpool agent --bind unix:{path}") as refused:
        await connect(f"unix:{path}").start()
    kind = ConnectionRefusedError if is_left else FileNotFoundError
    assert type(refused.value) is kind
    assert refused.value.filename == str(path)
    long = tmp_path / ("x" * 200)
    for wrong, text in (
        (tmp_path, "a file of that name, which is no socket"),
        (long, f"the path has {len(str(long))} bytes, and"),
    ):
        with pytest.raises(OSError, match=text):
            await connect(f"unix:{wrong}").start()


async def test_an_agent_that_does_not_answer_is_named_and_so_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "pool.sock")
    connect_within(monkeypatch, 0.05)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()  # as one whose process is stopped
        with pytest.raises(TimeoutError) as caught:
            await connect(f"unix:{path}").start()
    assert str(caught.value) == (
        f"the agent at {path} has not answered for 0.05 s: its process may be stopped, or its "
        "event loop blocked"
    )


async def test_a_server_takes_a_pool_and_the_path_of_a_socket(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "pool.sock"
    for wrong in (None, pool.options(timeout=3.0)):
        with pytest.raises(TypeError, match=r"pool must be an asyncpool\.Pool"):
            PoolServer(wrong, path)  # type: ignore[arg-type]
    for odd in (b"x", 3, None):
        with pytest.raises(TypeError, match="path must be a str or a PathLike"):
            PoolServer(pool, odd)  # type: ignore[arg-type]
    for empty in ("", "unix:"):
        with pytest.raises(ValueError, match="path must not be empty"):
            PoolServer(pool, empty)
    assert not path.exists()
    address = f"unix:{path}"
    async with PoolServer(pool, address), connect(address) as client:
        assert await client.submit(jobs.square, 3) == 9
