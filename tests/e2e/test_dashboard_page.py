"""The dashboard in a real browser: what it shows, by mouse and by keyboard, and whom it trusts."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.chromium import Keys, chromium
from tests.helpers.command import start_command
from tests.helpers.fake_program import FakeProgram
from tests.helpers.patience import PATIENCE
from tests.helpers.scripts import start_script
from tests.helpers.told_lines import (
    REQUEST,
    cluster_status,
    crashed,
    function,
    job,
    line,
    pool_status,
    slot,
)
from tests.helpers.told_pool import NODE

POOL = """
import asyncio
import os
import sys

import asyncpool


def work():
    return 1


def crash():
    print("the last words", file=sys.stderr, flush=True)
    os.abort()


async def main():
    async with asyncpool.Pool(2, name="shop", control=True) as pool:
        print("ready", flush=True)
        while word := await asyncio.to_thread(sys.stdin.readline):
            job = pool.submit(crash if word == "crash\\n" else work)
            await asyncio.wait({job})
            job.exception()


if __name__ == "__main__":
    asyncio.run(main())
"""

HOSTILE = (
    "<img src=x onerror=\"window.hacked='yes'\"><script>window.hacked='yes'</script>"
)

JOBS = [
    job(1, -4.0, "shop.resize"),
    job(2, -3.0, "shop.mail", "raised"),
    job(3, -2.0, "shop.resize"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def dashboard(folder: Path, *args: str) -> Iterator[str]:
    """Start a dashboard; yield the address of its page."""
    process = start_command(folder, "dashboard", "--bind", "127.0.0.1:0", *args)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield process.stdout.readline().removeprefix("dashboard: ").strip()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def pool(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a program with a pool; yield it when it works."""
    process = start_script(folder, POOL, keep_stdin=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def order(process: subprocess.Popen[str], word: str) -> None:
    """Have a program with a pool submit a job."""
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def a_pool(at: float = 0.0, name: str = "shop.resize") -> dict[str, object]:
    """Return a line of a pool in which something happens."""
    functions = [function(name, ok=40), function("shop.mail", ok=5, raised=1)]
    slots = [slot(0, cpu=at / 2, running=name), slot(1)]
    status = pool_status(functions=functions, slots=slots, busy=1)
    return line(at, status, jobs=JOBS if at else [], ended=3)


def test_it_shows_a_pool_its_crash_and_its_return(folder: Path) -> None:
    with chromium() as browser, dashboard(folder) as url:
        browser.open(url)
        browser.until(lambda: "No pool or server" in browser.text("#note"), "a note")
        with pool(folder) as process:
            browser.until(lambda: browser.text("#state") == "running", "the pool")
            assert browser.text("#name") == "shop"
            assert browser.text("#programs").startswith("shop\n")
            order(process, "work")
            browser.until(lambda: "work" in browser.text("#functions"), "its function")
            assert browser.text("#crashes-about") == "none so far"
            order(process, "crash")
            browser.until(lambda: "SIGABRT" in browser.text("#crashes"), "the crash")
            browser.find("#crashes summary").click()
            assert "the last words" in browser.text("#crashes pre")
            before = process.pid
        browser.until(lambda: browser.text("#state") == "ended", "its end")
        assert (
            browser.text("#note") == "It has ended. The page goes on when it is back."
        )
        with pool(folder) as process:
            browser.until(lambda: browser.text("#state") == "running", "its return")
            assert browser.text("#about") == f"pool · process {process.pid}"
            assert process.pid != before
            # What was before is still there.
            assert "SIGABRT" in browser.text("#crashes")
        assert browser.complaints() == []


def test_one_switches_between_programs(folder: Path) -> None:
    silent = dataclasses.replace(NODE, name="10.0.0.2", first_slot=10_000, silent=40.0)
    nodes = (NODE, dataclasses.replace(silent, suspected=True, clock_error=None))
    with (
        FakeProgram("mail", a_pool(0.0), a_pool(1.0, "mail.send")),
        FakeProgram("ray", line(0.0, pool_status(nodes=nodes))),
        FakeProgram("shop", a_pool(0.0), a_pool(1.0)),
        FakeProgram("web", line(0.0, cluster_status())) as web,
        chromium() as browser,
        dashboard(folder) as url,
    ):
        browser.open(url)
        browser.until(lambda: "mail.send" in browser.text("#functions"), "the first")
        browser.until(lambda: "shop" in browser.text("#programs"), "another one")
        browser.find("a[href='#shop']").click()
        browser.until(lambda: "shop.resize" in browser.text("#functions"), "the other")
        assert "mail.send" not in browser.text("#figures")
        assert browser.text("[aria-current=page]").startswith("shop")
        assert not browser.find("#nodes-card").is_displayed()
        # A server has no jobs.
        browser.find("a[href='#web']").click()
        web.tell(line(1.0, cluster_status(handed=12, connections=3)))
        browser.until(lambda: "12/s" in browser.text("#tiles"), "connections")
        assert browser.text("#about") == "server · process 400 · tcp://127.0.0.1:8000"
        assert not browser.find("#stream-card").is_displayed()
        assert "Open connections" in browser.text("#charts")
        # One that counts responses shows them, and which requests are open.
        web.answers["requests"] = {"requests": [REQUEST | {"path": HOSTILE}]}
        times = {"bounds": [0.001], "counts": [240], "total": 0.1}
        web.tell(line(2.0, cluster_status(responses={"2xx": times})))
        browser.until(lambda: "240/s" in browser.text("#tiles"), "responses")
        assert "Requests a second" in browser.text("#charts")
        browser.find("#requests").click()
        browser.until(lambda: "Open requests" in browser.text("#dialog"), "requests")
        browser.until(lambda: HOSTILE in browser.text("#dialog summary"), "as text")
        assert "for 12 s, from 10.0.0.7:5123, slot 1" in browser.text("#dialog summary")
        browser.find("#dialog summary").click()
        assert "db.py" in browser.text("#dialog pre")
        browser.find("#dialog form button").click()
        # Nodes are rows, if there are any.
        browser.find("a[href='#ray']").click()
        browser.until(lambda: "10.0.0.2" in browser.text("#nodes"), "the nodes")
        _, first, second = browser.text("#nodes").splitlines()
        assert first.startswith("10.0.0.1 0 ready")
        assert first.endswith("\N{PLUS-MINUS SIGN} 1.5 ms")
        assert second.startswith("10.0.0.2 10000 silent")
        assert browser.complaints() == []


def test_text_of_workers_stays_text(folder: Path) -> None:
    event = crashed(
        0.5, function=HOSTILE, stack=HOSTILE, detail=HOSTILE, stderr_tail=[HOSTILE]
    )
    hostile = {
        **a_pool(1.0, HOSTILE),
        "jobs": [job(1, -1.0, HOSTILE)],
        "events": [event],
    }
    with chromium() as browser, dashboard(folder) as url:
        with FakeProgram("shop", a_pool(0.0), hostile) as shop:
            shop.answers["stacks"] = {"stacks": {"0": HOSTILE}}
            shop.answers["profile"] = {"stacks": [[f"{HOSTILE};f", 3]], "samples": 3}
            browser.open(url)
            browser.until(lambda: browser.text("#crashes summary"), "the crash")
            browser.find("#crashes summary").click()
            for place in ("#crashes", "#functions", "#workers", "#legend"):
                assert HOSTILE in browser.text(place)
            browser.find("#stream").click()
            browser.keys(Keys.HOME)
            assert HOSTILE in browser.text("#tip")
            browser.find("#stacks").click()
            browser.until(lambda: HOSTILE in browser.text("#dialog pre"), "stacks")
            browser.find("#dialog form button").click()
            browser.find("#profile").click()
            browser.until(lambda: HOSTILE in browser.text(".flame"), "a flame graph")
        assert browser.run("window.hacked") is None
        assert browser.run("document.querySelectorAll('img').length") == 0
        assert browser.complaints() == []


def test_a_page_that_only_shows_has_nothing_to_act_with(folder: Path) -> None:
    with (
        FakeProgram("shop", a_pool(0.0), a_pool(1.0)) as shop,
        chromium() as browser,
        dashboard(folder) as url,
    ):
        browser.open(url)
        browser.until(lambda: browser.text("#workers tbody"), "workers")
        assert "Stack" in browser.text("#workers button")
        assert "Kill" not in browser.text("#workers button")
        assert not browser.find("#resize").is_displayed()
        script = """fetch("ask", {method: "POST", body: JSON.stringify(
            {program: "shop", action: "kill", slot: 0})}).then((reply) => reply.status)"""
        assert browser.run(script) == 403
        assert {each["action"] for each in shop.asked} == {"watch"}


def test_all_of_it_works_by_keyboard(folder: Path) -> None:
    with (
        FakeProgram("shop", a_pool(0.0), a_pool(0.5), a_pool(1.0)) as shop,
        chromium() as browser,
        dashboard(folder, "--allow-actions") as url,
    ):
        shop.answers["kill"] = {"text": "killed"}
        browser.open(url)
        browser.until(lambda: browser.text("#workers tbody"), "workers")
        seen = []
        while "kill slot 0" not in seen:
            browser.keys(Keys.TAB)
            seen.append(
                browser.run(
                    "(document.activeElement.getAttribute('aria-label') || "
                    "document.activeElement.textContent).toLowerCase()"
                )
            )
            if seen[-1].startswith("jobs by worker"):
                browser.keys(Keys.HOME)
                assert "shop.resize, ok after 100 ms" in browser.text("#spoken")
                browser.keys(Keys.ARROW_RIGHT)
                assert "shop.mail, raised" in browser.text("#spoken")
                assert browser.find("#tip").is_displayed()
                browser.keys(Keys.ESCAPE)
                assert not browser.find("#tip").is_displayed()
            if seen[-1].startswith("throughput."):
                browser.keys(Keys.ARROW_LEFT)
                assert "done: " in browser.text("#spoken")
        assert seen[0] == "to the figures"
        assert {"stacks", "profile", "pause", "15 s"} <= set(seen)
        # What scrolls by itself can be reached, too.
        assert any(each.startswith("functionjobs/s") for each in seen)
        # The row stays the same element, so the focus outlives an update.
        shop.tell(a_pool(1.5))
        browser.keys(Keys.ENTER)
        browser.until(lambda: "Kill in shop" in browser.text("#dialog h2"), "a dialog")
        browser.keys(Keys.TAB, Keys.ENTER)
        browser.until(lambda: not browser.find("#dialog").is_displayed(), "its end")
        assert shop.asked[-1] == {"action": "kill", "slot": 0}


def test_no_width_needs_a_horizontal_scroll_bar(folder: Path) -> None:
    name = "shop." + "a_function_with_a_very_long_name" * 4
    long = {**a_pool(1.0, name), "events": [crashed(0.5)]}
    with (
        FakeProgram("shop", a_pool(0.0), long),
        chromium() as browser,
        dashboard(folder, "--allow-actions") as url,
    ):
        for width in (1440, 768, 390, 320):
            browser.resize(width)
            browser.open(url)
            browser.until(lambda: browser.text("#crashes summary"), "all of it")
            assert browser.run("document.documentElement.scrollWidth") == width


def test_it_is_dark_where_the_system_is_or_somebody_wants_it(folder: Path) -> None:
    page = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(246, 246, 243)", "rgb(18, 18, 17)"
    with chromium() as browser, dashboard(folder) as url:
        browser.resize(1000, dark=True)
        browser.open(url)
        assert browser.run(page) == dark
        button = browser.find("#theme")
        assert button.text == "Theme: system"
        button.click()
        assert (button.text, browser.run(page)) == ("Theme: light", light)
        browser.open(url)
        assert browser.run(page) == light
        browser.resize(1000, dark=False)
        browser.find("#theme").click()
        assert browser.run(page) == dark


class _Foreign(http.server.BaseHTTPRequestHandler):
    """A page of somebody else's, which knows the address of the dashboard."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>foreign</title>")

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def foreign_page() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Foreign) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join(PATIENCE)


def test_another_page_can_neither_read_nor_act_nor_show_it(folder: Path) -> None:
    with (
        # It ends after the browser, which keeps a connection to it.
        foreign_page() as foreign,
        chromium() as browser,
        dashboard(folder, "--allow-actions") as url,
        FakeProgram("shop", a_pool(0.0)) as shop,
    ):
        browser.open(url)
        browser.until(lambda: browser.text("#state") == "running", "the pool")
        browser.open(foreign)
        for mode in ("cors", "no-cors"):
            posted = browser.run(
                """fetch(arguments[0] + "ask", {method: "POST", mode: arguments[1],
                body: JSON.stringify({program: "shop", action: "kill", slot: 0})})
                .then((reply) => reply.type, () => "refused")""",
                url,
                mode,
            )
            assert posted == {"cors": "refused", "no-cors": "refused"}[mode]
        read = browser.run(
            "fetch(arguments[0]).then(() => 'read', () => 'refused')", url
        )
        assert read == "refused"
        loaded = """new Promise((done) => {
            const script = document.createElement("script");
            script.onload = () => done("loaded");
            script.onerror = () => done("refused");
            script.src = arguments[0] + "text.js";
            document.head.append(script);
        })"""
        assert browser.run(loaded, url) == "refused"
        framed = """new Promise((done) => {
            const frame = document.createElement("iframe");
            frame.onload = () => {
                try { done(frame.contentDocument === null ? "refused" : "empty"); }
                catch { done("refused"); }
            };
            frame.src = arguments[0];
            document.body.append(frame);
        })"""
        assert browser.run(framed, url) == "refused"
        assert any("frame-ancestors" in text for text in browser.complaints())
        assert {each["action"] for each in shop.asked} == {"watch"}
