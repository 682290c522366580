"""``asyncpool serve`` and the commands for what it serves, as a user runs them."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvicorn

from tests.helpers.command import in_terminal, run_command, run_without
from tests.helpers.guards import few_descriptors
from tests.helpers.patience import PATIENCE
from tests.helpers.serving import APP, Server, until, write_app

PORT = ("--bind", "127.0.0.1:0")
ONE = (*PORT, "--workers", "1")
TWO = (*PORT, "--workers", "2")

TWICE = APP.replace('"one"', '"two"')
SENDS = """
    import pathlib

    async def serve(worker):
        worker.ready()
        for n in range(100):
            await worker.send(n)
        pathlib.Path("sent").touch()
        await worker.wait_draining()
"""
BROKEN = "raise RuntimeError('not today')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_app(tmp_path)
    with tempfile.TemporaryDirectory() as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield tmp_path


def pids(status: dict[str, Any]) -> list[int]:
    return [slot["pid"] for slot in status["slots"]]


def test_a_printed_line_shows_what_a_terminal_would(folder: Path) -> None:
    write_app(folder, APP + '\n    print("half\\rdone\\r")\n')
    with Server(folder, "app:app", *ONE) as server:
        server.says("in slot 0: done\n").up()
        assert server.end(signal.SIGTERM) == 0


def test_who_reads_the_log_may_stop_reading(folder: Path) -> None:
    """As a terminal does after Ctrl-S, or a collector that hangs."""
    noisy = """
        async def app(scope, receive, send):
            if scope["type"] == "http":
                if scope["path"] == "/noisy":
                    print("x" * 300_000)
                await send({"type": "http.response.start", "status": 200})
                await send({"type": "http.response.body", "body": b"here"})
    """
    write_app(folder, noisy)
    os.mkfifo(folder / "fifo")
    reader = os.open(folder / "fifo", os.O_RDWR)
    unread = ["sh", "-c", 'exec "$@" 2> fifo', "sh"]
    with Server(folder, "app:app", *TWO, before=unread) as server:
        log = b""
        while b"Ctrl-C drains" not in log:
            log += os.read(reader, 4096)
        found = re.search(rb"http://127\.0\.0\.1:(\d+)", log)
        assert found is not None
        for path in ("/noisy", "/", "/"):
            client = http.client.HTTPConnection("127.0.0.1", int(found[1]), PATIENCE)
            client.request("GET", path)
            assert client.getresponse().read() == b"here"
            client.close()
        assert server.status()["state"] == "running"
        assert server.end(signal.SIGTERM) == 0
    os.close(reader)


def test_a_whole_life(folder: Path) -> None:
    with Server(folder, "app:app", *TWO) as server:
        server.whole()
        version, pid = server.get().split()
        before = server.status()
        assert version == "one"
        assert int(pid) in pids(before)
        assert (before["name"], before["pid"]) == ("app", server.process.pid)
        assert (before["state"], before["workers"]) == ("running", 2)
        assert before["addresses"] == [f"tcp://127.0.0.1:{server.port}"]
        assert before["handed"] == 1

        write_app(folder, TWICE)
        done = server.command("reload")
        assert (done.code, done.err) == (0, "reloaded: 2 workers are new\n")
        assert not set(pids(server.status())) & set(pids(before))
        assert server.get().startswith("two ")

        done = server.command("resize", "3")
        assert (done.code, done.err) == (0, "3 workers now, 2 before\n")
        none = [0, 0, 0]
        until(
            lambda: [it["connections"] for it in server.status()["slots"]] == none, ""
        )
        shown = server.command("status")
        assert shown.code == 0
        # A worker tells of its responses once a second, and at its end.
        head, figures, responses, titles, *rows = shown.out.splitlines()
        assert re.match(
            r"responses   2xx [12] \(.+, 99%: .+\)   0 open, 0 refused", responses
        )
        assert head.startswith(f"app  pid {server.process.pid}  running  handoff  tcp:")
        assert figures.startswith("3 of 3 workers ready   0 connections open, 2 in all")
        assert titles.split() == [
            *("slot", "gen", "pid", "state"),
            *("open", "in", "all", "p99", "up", "CPU", "memory"),
        ]
        assert [row.split()[3] for row in rows] == ["ready"] * 3

        done = server.command("stop")
        assert (done.code, done.err) == (
            0,
            f"stopped: app, process {server.process.pid}\n",
        )
        assert server.end() == 0


def test_the_log_tells_its_life(folder: Path) -> None:
    with Server(folder, "app:app", *ONE, "--log-format", "json") as server:
        server.whole()
        server.command("reload")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    records = [json.loads(line) for line in server.log.splitlines()]
    told = [
        re.sub(r"\d+\.\d\d s|(worker|process) \d+", r"\1 N", record["message"])
        for record in records
        if record["message"].startswith("cluster app: ")
    ]
    assert [
        text.removeprefix("cluster app: ") for text in told if "first" not in text
    ] == [
        "worker N in slot 0 is ready after  N",
        f"serves after  N: process N, tcp://127.0.0.1:{server.port}",
        "asked to reload by a command",
        "worker N in slot 1 is ready after  N",
        "worker N in slot 0 takes no more connections: a reload replaces it",
        "worker N in slot 0 has ended",
        "reloaded: 1 worker is new",
        (
            "asked to end by SIGTERM: workers finish their connections; when asked again, "
            "it ends at once"
        ),
        "worker N in slot 1 has ended",
        "has ended: 0 connections finished meanwhile, 0 were cut off, 0 workers killed",
    ]
    assert {record["level"] for record in records} == {"INFO"}


ENDLESS = {
    "asgi": """
        import asyncio

        async def app(scope, receive, send):
            if scope["type"] == "http":
                start = {"type": "http.response.start", "status": 200, "headers": []}
                body = {"type": "http.response.body", "body": b"x", "more_body": True}
                await send(start)
                while True:
                    await send(body)
                    await asyncio.sleep(0.01)
    """,
    "wsgi": """
        import time

        def app(environ, start_response):
            start_response("200 OK", [])
            while True:
                yield b"x"
                time.sleep(0.01)
    """,
}


@pytest.mark.parametrize("interface", ENDLESS)
def test_what_is_cut_off_has_not_finished(folder: Path, interface: str) -> None:
    write_app(folder, ENDLESS[interface])
    short = ("--drain-timeout", "0.2", "--interface", interface)
    with Server(folder, "app:app", *ONE, *short) as server:
        clients = [server.begin() for _ in range(3)]
        for client in clients:
            assert client.getresponse().read(1) == b"x"
        assert server.end(signal.SIGTERM) == 0
        for client in clients:
            client.close()
    assert "3 of 3 connections had not ended within the drain_timeout" in server.log
    assert "0 connections finished meanwhile, 3 were cut off" in server.log


@pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="only Linux tells of others"
)
def test_it_may_open_as_many_files_as_its_user_may(folder: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with few_descriptors(100):
        server = Server(folder, "app:app", *ONE)
    with server:
        server.whole()
        for pid in (server.process.pid, *pids(server.status())):
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)
        server.signal(signal.SIGTERM)
        assert server.end() == 0


def test_messages_that_nobody_can_read_hold_nobody_up(folder: Path) -> None:
    write_app(folder, SENDS)
    with Server(folder, "app:serve", *ONE, "--interface", "serve") as server:
        until((folder / "sent").exists, "all is sent")
        server.signal(signal.SIGTERM)
        assert server.end() == 0


# Signals.


def in_the_middle(server: Server) -> http.client.HTTPConnection:
    """Return a client whose request has begun, and does not end by itself."""
    client = server.begin("/slow")
    until((server.folder / "begun").exists, "the request has begun")
    return client


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_finish(number: int, folder: Path) -> None:
    with Server(folder, "app:app", *ONE, "--drain-timeout", "3600") as server:
        client = in_the_middle(server)
        server.signal(number)
        until(lambda: server.status()["state"] == "closing", "it drains")
        (folder / "go").touch()
        assert client.getresponse().read().startswith(b"one ")
        client.close()
        assert server.end() == 0


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1]
)
def test_a_signal_behind_the_end_changes_nothing(number: int, folder: Path) -> None:
    """One after the other, from the end of the cluster to that of the process."""
    with Server(folder, "app:app", *ONE) as server:
        server.whole()
        server.signal(signal.SIGTERM)
        server.says("has ended:")

        def is_gone() -> bool:
            server.signal(number)  # sends nothing to one that is gone
            return server.process.poll() is not None

        until(is_gone, "the end of the process")
        assert server.end() == 0


def test_the_limit_that_has_applied_is_named(folder: Path) -> None:
    limits = ("--drain-timeout", "0.2", "--reload-drain-timeout", "3600")
    with Server(folder, "app:app", *ONE, *limits) as server:
        client = in_the_middle(server)
        server.signal(signal.SIGHUP)
        server.says("takes no more connections")
        assert server.end(signal.SIGTERM) == 0
        client.close()
    told = "1 of 1 connections had not ended within the drain_timeout of 0.2 s"
    assert told in server.log


@pytest.mark.parametrize("how", ["signal", "command", "SIGQUIT"])
def test_a_second_signal_or_sigquit_ends_at_once(how: str, folder: Path) -> None:
    with Server(folder, "app:app", *ONE, "--drain-timeout", "3600") as server:
        client = in_the_middle(server)
        if how != "SIGQUIT":
            server.signal(signal.SIGTERM)
            until(lambda: server.status()["state"] == "closing", "it drains")
        if how == "signal":
            assert server.end(signal.SIGTERM) == 128 + signal.SIGTERM
        elif how == "command":
            assert server.command("stop", "--now").code == 0
            assert server.end() == 0
        else:
            assert server.end(signal.SIGQUIT) == 0
            server.says("cluster app: asked to end by SIGQUIT: it ends at once")
        with pytest.raises((http.client.HTTPException, OSError)):
            client.getresponse()
        client.close()


def test_signals_reload_resize_and_show_where_workers_are(folder: Path) -> None:
    with Server(folder, "app:app", *TWO) as server:
        server.whole()
        assert server.get().startswith("one ")
        server.signal(signal.SIGRTMIN + 3)
        server.says("WARNING asyncpool.pool: cluster app: SIGRTMIN+3 means nothing")
        server.signal(signal.SIGUSR1)
        server.says("stacks of worker 0:").says("stacks of worker 1:")
        server.says("in run_forever", times=2)
        write_app(folder, TWICE)
        server.signal(signal.SIGHUP)
        server.says("reloaded: 2 workers are new")
        assert server.get().startswith("two ")
        server.signal(signal.SIGTTIN)
        server.says("is resized: 3 workers")
        server.signal(signal.SIGTTOU)
        server.says("is resized: 2 workers")
        assert server.status()["workers"] == 2
        write_app(folder, BROKEN)
        server.signal(signal.SIGHUP)
        server.says("the reload has ended after 0 workers, the others are as before: ")
        assert "RuntimeError: not today" in server.log
        done = server.command("reload")
        assert done.code == 1
        assert done.err.startswith("asyncpool: the reload has ended after 0 workers, ")
        assert "RuntimeError: not today" in done.err
        done = server.command("resize", "3")
        assert done.code == 1
        assert done.err.startswith(
            "asyncpool: there are not as many workers yet: worker "
        )
        assert "RuntimeError: not today" in done.err
        assert server.get().startswith("two ")
        assert server.end(signal.SIGTERM) == 0


def test_workers_are_replaced_after_so_many_connections(folder: Path) -> None:
    options = ("--max-connections", "1", "--launcher", "spawn", "--nice", "1")
    with Server(folder, "app:app", *ONE, *options, "--max-surge", "2") as server:
        first = int(server.get().split()[1])

        def others() -> list[int]:
            ready = [it["pid"] for it in server.status()["slots"] if it["ready"]]
            return [] if first in ready else ready

        (pid,) = until(others, "it is replaced")
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pid) == mine + 1
        assert server.end(signal.SIGTERM) == 0


def test_ctrl_c_in_a_terminal(folder: Path) -> None:
    done = in_terminal(
        folder, "serve", "app:app", *ONE, keys={"Ctrl-C drains": b"\x03"}
    )
    assert done.code == 0
    assert "serving app:app after " in done.err
    assert "Traceback" not in done.err


# What cannot be served.


@pytest.mark.parametrize(
    ("target", "reason", "way_out"),
    [
        (
            "nomod:app",
            "ModuleNotFoundError: No module named 'nomod'",
            "  Modules are found in the current folder, in PYTHONPATH, in what is",
        ),
        (
            "no.mod:app",
            "ModuleNotFoundError: No module named 'no'",
            "  Modules are found in the current folder, in PYTHONPATH, in what is",
        ),
        (
            "app:nope",
            "AttributeError: module 'app' has no attribute 'nope'",
            "  What is it called in app?  Write app:NAME.",
        ),
        ("bad:app", "RuntimeError: not today", "Traceback (most recent call last):"),
        (
            "needy:app",
            "ModuleNotFoundError: No module named 'missing_one'",
            "Traceback (most recent call last):",
        ),
        ("app:VERSION", "TypeError: ", None),
    ],
)
def test_bad_code(target: str, reason: str, way_out: str | None, folder: Path) -> None:
    write_app(folder, BROKEN, "bad")
    write_app(folder, "import missing_one", "needy")
    with Server(folder, target, *TWO, "--interface", "serve") as server:
        assert server.end() == 3
        first, *rest = server.log.splitlines()
    assert first.startswith(f"asyncpool: {target} cannot be served: {reason}")
    if way_out is None:
        assert rest == []
    else:
        assert rest[0].startswith(way_out)
    if rest and rest[0].startswith("Traceback"):
        # Its own frames, and no others.
        assert rest[1].startswith(f'  File "{folder}/')
        assert rest[-1] == reason
        assert sum(line.startswith("  File ") for line in rest) == 1


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_each_failed_start_of_a_server_is_one_record(
    log_format: str, folder: Path
) -> None:
    own = f"""\
    Traceback (most recent call last):
      File "{folder}/app.py", line 1, in <module>
        import bad
      File "{folder}/bad.py", line 1, in <module>
        raise RuntimeError('not today')
    RuntimeError: not today"""
    with Server(folder, "app:app", *ONE, "--log-format", log_format) as server:
        server.says("serves after ")
        begun = len(server.log)
        write_app(folder, BROKEN, "bad")
        write_app(folder, "import bad")
        for _ in range(2):
            assert server.command("reload").code == 1
        write_app(folder, "import nothing_there")
        assert server.command("reload").code == 1
        write_app(folder, "VERSION = 1")
        assert server.command("reload").code == 1
        server.says("the reload has ended after 0 workers", times=4)
        log = server.log[begun:]
        assert server.end(signal.SIGTERM) == 0
    assert "/asyncpool/" not in log.replace(f"{folder}/", "")
    assert "importlib" not in log
    if log_format == "text":
        assert log.count(f"the worker that it was to replace stays\n{own}\n") == 2
        assert log.count("Traceback") == 3, "there is none where no frame is the user's"
    else:
        entries = [json.loads(line) for line in log.splitlines()]
        failed = [it for it in entries if "the worker that it" in it["message"]]
        traces = [entry.get("exception") for entry in failed]
        assert traces[:2] == [own] * 2
        assert traces[2].endswith(
            "ModuleNotFoundError: No module named 'nothing_there'"
        )
        assert traces[3:] == [None]
        assert not [it for it in entries if it["logger"] == "asyncpool.worker"]


def test_a_start_that_fails_now_and_then_is_told_of(folder: Path) -> None:
    write_app(
        folder,
        """
        import os, pathlib, traceback

        async def serve(worker):
            try:
                pathlib.Path("died").touch(exist_ok=False)
            except FileExistsError:
                traceback.print_exc()
                worker.ready()
                await worker.wait_draining()
            else:
                os._exit(7)
        """,
        "moody",
    )
    with Server(folder, "moody:serve", *ONE, "--interface", "serve") as server:
        server.says("in slot 0 exited with status 7 (failed start); ").up()
        # What a worker prints by itself is printed.
        server.says("Traceback (most recent call last)").says(": FileExistsError: ")
        assert server.end(signal.SIGTERM) == 0


def test_workers_that_die_again_and_again(folder: Path) -> None:
    write_app(
        folder,
        """
        import os

        async def serve(worker):
            worker.ready()
            os._exit(7)
        """,
        "dying",
    )
    with Server(folder, "dying:serve", *ONE, "--interface", "serve") as server:
        server.says("exited with status 7", times=8)  # and it goes on
        assert server.end(signal.SIGTERM) == 0
        assert "given up" not in server.log
    limit = "--max-restarts", "3", "--within", "3600"
    with Server(folder, "dying:serve", *ONE, "--interface", "serve", *limit) as server:
        assert server.end() == 3
        reason = "4 workers died within 3600 s, and the policy allows 3"
        assert f"dying:serve: given up: {reason}; last: worker " in server.log


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["app"], "'app' is not MODULE:NAME, such as app:app"),
        (["app:app", "--bind", "8000"], "'8000' has no port; write 127.0.0.1:8000"),
        (["app:app", "--bind", "systemd:"], "'systemd:': systemd has passed no sock"),
        (["app:app", "--metrics", "here"], "--metrics: 'here' has no port; write"),
        (["app:app", "--name", "a/b"], "--name: 'a/b' is no name, which is 1 to 64"),
        (["app:app", "--option", "x"], "--option: 'x' is not NAME=VALUE"),
        (
            ["app:app", "--within", "5"],
            "--within says for how long --max-restarts counts: give both",
        ),
        (
            ["app:app", "-o", "factory=true", "-o", "rootpath=/api"],
            (
                f"--option: uvicorn {uvicorn.__version__} has no rootpath; "
                "is root_path meant?\n"
            ),
        ),
        (
            ["app:app", "-o", "nonsense=1"],
            f"--option: uvicorn {uvicorn.__version__} has no nonsense\n",
        ),
        (
            ["app:app", "--max-memory", "2G", "--kill-memory", "1G"],
            "kill_memory must be more than max_memory (2 GiB), not 1 GiB\n",
        ),
        (
            ["app:app", "--option", "headers=" + "[" * 100_000],
            "--option: headers is a list or an object, in JSON, not '[[[",
        ),
        (
            ["app:app", "--option", "workers=3"],
            "--option: workers is the command's: --workers",
        ),
        (
            ["app:app", "--interface", "serve", "-o", "x=1", "--access-log"],
            "--option is for applications: with --interface serve it would change nothing\n",
        ),
        (["app.py:app"], "app.py is a file, and a module's name is wanted: app:app\n"),
        (
            ["app:app", "--interface", "serve", "--root-path", "/x"],
            "--root-path is for applications: with --interface serve it would change",
        ),
        (
            ["app:app", "--ssl-certfile", "app.py"],
            "app.py: the certificate and its key",
        ),
        (
            ["app:app", "--interface", "serve", "--access-log"],
            "--access-log is for applications: with --interface serve it would change nothing\n",
        ),
        (
            ["app:app", "--reload-on-change", "--preload", "json"],
            "what is preloaded is not loaded anew: --reload-on-change or not",
        ),
    ],
)
def test_mistakes(args: list[str], error: str, folder: Path) -> None:
    done = run_command(folder, "serve", *args)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"asyncpool: {error}")


@pytest.mark.parametrize(
    ("package", "what", "extra"),
    [
        ("uvicorn", "--interface asgi", "cluster"),
        ("watchfiles", "--reload-on-change", "reload"),
        ("prometheus_client", "--metrics", "prometheus"),
    ],
)
def test_what_is_not_installed(
    package: str, what: str, extra: str, folder: Path
) -> None:
    asked = ("serve", "app:app", "--reload-on-change", "--metrics", "9100")
    done = run_without(folder, package, *asked)
    assert done.code == 2
    assert done.err == (
        f"asyncpool: {what} needs {package}, which is not installed: "
        f"pip install 'asyncpool-supervised[{extra}]'\n"
    )


@pytest.mark.parametrize("option", ["--bind", "--metrics"])
def test_an_address_that_is_in_use(option: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = run_command(folder, "serve", "app:app", option, address)
    assert (done.code, done.out) == (1, "")
    about = "--metrics: " if option == "--metrics" else ""
    where = f"tcp://{address}: Address already in use"
    assert done.err == f"asyncpool: {about}cannot listen on {where}\n"


def test_a_control_socket_that_cannot_be(folder: Path) -> None:
    done = run_command(folder, "serve", "app:app", *ONE, "--control", "/no/such/socket")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "asyncpool: cannot make the control socket /no/such/socket: "
        "there is no folder /no/such: make it first\n"
    )


# What is inherited, and who is told.


@pytest.fixture
def inherited() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock


@pytest.mark.parametrize("passed", [False, True], ids=["by number", "by systemd"])
def test_a_socket_is_inherited(
    folder: Path,
    inherited: socket.socket,
    passed: bool,  # noqa: FBT001
) -> None:
    fd = inherited.fileno()
    script = f'exec 3<&{fd}; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'
    with Server(
        folder,
        *("app:app", "--bind", "systemd:" if passed else f"fd://{fd}"),
        *("--workers", "1"),
        before=["bash", "-c", script, "-"] if passed else (),
        fds=[fd],
    ) as server:
        assert server.port == inherited.getsockname()[1]
        assert server.get().startswith("one ")
        assert server.end(signal.SIGTERM) == 0


def test_systemd_is_told(folder: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(f"{place}/notify")
        manager.settimeout(PATIENCE)
        heard: list[str] = []

        def hear(state: str) -> str:
            while state not in heard[-1:]:
                heard.append(manager.recv(4096).decode().split("\n")[0])
            return heard[-1]

        env = {"NOTIFY_SOCKET": f"{place}/notify"}
        with Server(folder, "app:app", *ONE, env=env) as server:
            assert hear("READY=1")
            server.signal(signal.SIGHUP)
            assert hear("RELOADING=1")
            assert hear("READY=1")
            server.signal(signal.SIGTERM)
            assert hear("STOPPING=1")
            assert server.end() == 0


# Development.


def test_a_change_repairs_what_could_not_start_and_reloads(folder: Path) -> None:
    write_app(folder, BROKEN)
    with Server(folder, "app:app", *ONE, "--reload-on-change") as server:
        server.says("app:app cannot be served: RuntimeError: not today")
        server.says("waiting for a change of the code")
        write_app(folder)
        assert server.get().startswith("one ")
        write_app(folder, BROKEN)
        server.says("app.py changed: reloading")
        server.says("the reload has ended after 0 workers")
        assert server.get().startswith("one ")
        write_app(folder, TWICE)
        server.says("reloaded: 1 worker is new")
        assert server.get().startswith("two ")
        assert server.end(signal.SIGINT) == 0


def test_waiting_for_a_change_is_interrupted(folder: Path) -> None:
    write_app(folder, BROKEN)
    with Server(folder, "app:app", *ONE, "--reload-on-change") as server:
        server.says("waiting for a change of the code")
        assert server.end(signal.SIGINT) == 130
        assert "Traceback" not in server.log.partition("waiting")[2]


# The commands.


def test_nobody_is_there(folder: Path) -> None:
    done = run_command(folder, "status")
    runtime = os.environ["XDG_RUNTIME_DIR"]
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"asyncpool: no pool or server of yours is found in {runtime}/asyncpool: a pool "
        "needs Pool(control=True), or ASYNCPOOL_CONTROL=1; if its control socket is "
        "elsewhere, name it: --control PATH\n"
    )
    done = run_command(folder, "stop", "--name", "app")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "asyncpool: there is no pool or server named app; there is none at all\n"
    )
    done = run_command(folder, "reload", "--control", "./none")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "asyncpool: there is no pool or server at ./none; there is none at all\n"
    )


def test_which_one_is_meant(folder: Path) -> None:
    names = ("blue", "green")
    servers = [
        Server(folder, "app:app", *ONE, "--name", name, env=dict(os.environ))
        for name in names
    ]
    with servers[0] as blue, servers[1] as green:
        green.up()
        runtime = {"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"]}
        blue.env.update(runtime)
        until(lambda: blue.command("status").out.count("  running  ") == 2, "two run")
        shown = blue.command("status", "--json")
        assert [json.loads(line)["name"] for line in shown.out.splitlines()] == [*names]
        done = blue.command("stop")
        assert (done.code, done.out) == (2, "")
        assert done.err == ("asyncpool: there are several, say which: blue | green\n")
        assert json.loads(blue.command("status", "green", "--json").out)["pid"] == (
            green.process.pid
        )
        with Server(folder, "app:app", *ONE, "--name", "blue", env=runtime) as third:
            assert third.end() == 1
            assert "another process listens there" in third.log
        assert blue.command("stop", "blue").code == 0
        assert blue.command("stop").code == 0
        assert (blue.end(), green.end()) == (0, 0)


# Beyond ASGI, and alone in a container.


def can_unshare() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    there = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    try:
        return subprocess.run(there, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
SHELLS = """
    import subprocess

    async def app(scope, receive, send):
        if scope["type"] == "http":
            shell = "for n in $(seq 40); do sleep 0.01 & echo $!; done"
            out = subprocess.run(["sh", "-c", shell], capture_output=True).stdout
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": out})
"""


@pytest.mark.parametrize(
    "before",
    [
        (),
        pytest.param(
            NAMESPACE,
            marks=pytest.mark.skipif(not can_unshare(), reason="may not make them"),
        ),
    ],
    ids=["as a process", "as the first process"],
)
def test_programs_in_the_background_leave_no_zombies(
    before: tuple[str, ...], folder: Path
) -> None:
    write_app(folder, SHELLS)
    with Server(folder, "app:app", *ONE, before=before) as server:
        assert len(server.get().split()) == 40
        until(lambda: not sleepers_below(server.process.pid), "no zombies")
        # unshare's child is the first there, and its child is the server.
        first = int(kids(server.process.pid)[0]) if before else server.process.pid
        os.kill(first, signal.SIGHUP)
        server.says("reloaded: 1 worker is new")
        os.kill(first, signal.SIGTERM)
        assert server.end() == 0


def sleepers_below(pid: int) -> list[psutil.Process]:
    """Return the programs that are there, zombies included."""
    found: list[psutil.Process] = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if process.name() == "sleep":
                found.append(process)
    return found


def kids(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
