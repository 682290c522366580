"""``asyncpool call`` and ``doctor``, help, completion, and what is drawn at a terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import (
    command_environment,
    finish_command,
    in_terminal,
    run_code,
    run_command,
    run_without,
    start_command,
    wait_until,
    write_module,
)

WORK = """
    import os, signal, time

    def shown(*args, **kwargs):
        return [args, kwargs]

    def greet(name):
        return f"hello {name}"

    def nothing():
        return None

    def hang():
        while True:
            pass

    def die():
        os.kill(os.getpid(), signal.SIGSEGV)

    def wrong():
        raise LookupError("no such thing")

    def grow():
        return len(bytearray(os.urandom(1)) * (1 << 30))

    def slow(n):
        time.sleep(0.02)
        if n == 3:
            raise ValueError(n)
        if n == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    def wait(n):
        with open("begun", "a") as log:
            print(n, file=log)
        time.sleep(60)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    write_module(tmp_path, WORK)
    return tmp_path


def test_a_call_prints_its_result(folder: Path) -> None:
    done = run_command(
        folder, "call", "work:shown", "1", "text", '"2"', "[3]", "a=4", "b=x=y", "1=2"
    )
    assert done.code == 0
    assert json.loads(done.out) == [[1, "text", "2", [3], "1=2"], {"a": 4, "b": "x=y"}]
    assert run_command(folder, "call", "work:greet", "you").out == "hello you\n"
    assert run_command(folder, "call", "work:nothing").out == ""


def test_a_call_that_hangs_shows_where(folder: Path) -> None:
    done = run_command(folder, "call", "work:hang", "--timeout", "0.5")
    assert (done.code, done.out) == (124, "")
    first, *stack = done.err.splitlines()
    assert first == (
        "asyncpool: job 2 (work:hang) ran longer than its timeout of 0.5 s, in attempt 1"
    )
    assert any(re.search(r'work.py", line \d+ in hang', line) for line in stack)


def test_a_call_that_crashes_shows_where(folder: Path) -> None:
    done = run_command(folder, "call", "work:die")
    assert done.code == 1
    assert "was killed by SIGSEGV" in done.err
    assert "job 2 (work:die)" in done.err
    assert re.search(r'work.py", line \d+ in die', done.err)


def test_a_call_of_a_module_that_crashes_shows_where(folder: Path) -> None:
    write_module(folder, "import os\n\nos.abort()\n", "deadly")
    done = run_command(folder, "call", "deadly:f")
    assert (done.code, done.out) == (3, "")
    assert "SIGABRT" in done.err
    assert re.search(r'deadly.py", line \d+ in <module>', done.err)


def test_a_call_that_raises_shows_its_traceback(folder: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "asyncpool", "call", "work:wrong"],
        cwd=folder,
        env=command_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert process.stderr.startswith("Traceback (most recent call last):\n")
    assert process.stderr.endswith("LookupError: no such thing\n")
    assert "asyncpool/" not in process.stderr, "frames of ours are in the way"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_call_has_its_limit_of_memory(folder: Path) -> None:
    done = run_command(folder, "call", "work:grow", "--kill-memory", "100M", "--json")
    assert done.code == 1
    assert json.loads(done.out)["error"]["kind"] == "out of memory"


@pytest.mark.parametrize(
    ("asked", "kind"),
    [(["work:hang", "--timeout", "0.2"], "timeout"), (["work:wrong"], "raised")],
)
def test_a_call_for_machines(folder: Path, asked: list[str], kind: str) -> None:
    good = json.loads(run_command(folder, "call", "work:greet", "x", "--json").out)
    assert (good["result"], sorted(good)) == ("hello x", ["result", "seconds"])
    bad = json.loads(run_command(folder, "call", *asked, "--json").out)
    assert bad["error"]["kind"] == kind


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_call_that_is_interrupted_is_told_to_machines(
    folder: Path, name: str
) -> None:
    number, said = signal.Signals[name], list[str]()
    for more in ((), ("--json",)):
        process = start_command(folder, "call", "work:wait", "1", *more)
        wait_until(folder / "begun", 1)
        (folder / "begun").unlink()
        os.kill(process.pid, number)
        done = finish_command(process)
        assert (done.code, done.err) == (128 + number, "")
        said.append(done.out)
    assert said[0] == "", "people know"
    told = json.loads(said[1])
    assert sorted(told) == ["error", "seconds"]
    error = {"kind": "interrupted", "type": name, "message": f"ended by {name}"}
    assert told["error"] == error


def test_a_mistake_in_a_call(folder: Path) -> None:
    done = run_command(folder, "call", "work:great")
    assert (done.code, done.out) == (2, "")
    assert done.err == "asyncpool: work has no great: did you mean greet?\n"
    done = run_command(folder, "call", "work:great", "--json")
    assert (done.code, done.err) == (2, "")
    error = json.loads(done.out)["error"]
    assert error["message"] == "work has no great: did you mean greet?"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([], "Missing argument 'MODULE:FUNCTION'."),
        (
            ["--kill-memory", "much"],
            "Invalid value for '--kill-memory': 'much' is no size, {}",
        ),
        (
            ["work:greet", "[" * 100_000],
            f"an argument is nested too deeply: {'[' * 20}…",
        ),
        (
            ["work:greet", "name=" + "[" * 100_000],
            f"an argument is nested too deeply: {'[' * 20}…",
        ),
    ],
)
def test_mistakes_in_a_call_are_told_to_machines(
    folder: Path, asked: list[str], message: str
) -> None:
    message = message.format("such as 512M or 2G")
    done = run_command(folder, "call", *asked, "--json")
    assert (done.code, done.err) == (2, "")
    assert json.loads(done.out) == {
        "error": {"kind": "failed", "type": "UsageError", "message": message},
        "seconds": 0.0,
    }


def test_what_is_an_argument_is_no_option(folder: Path) -> None:
    done = run_command(folder, "call", "work:greet", "--", "--json")
    assert (done.code, done.out) == (0, "hello --json\n")
    done = run_command(folder, "call", "work:greet", "--timeout", "0", "--", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: asyncpool call")


def test_a_negative_number_needs_two_dashes_before_it(folder: Path) -> None:
    done = run_command(folder, "call", "math:fabs", "-5")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == (
        "Error: No such option '-5'. If it is an argument, put -- before it: -- -5"
    )
    done = run_command(folder, "call", "math:fabs", "--", "-5")
    assert (done.code, done.out) == (0, "5.0\n")


def test_the_doctor_tells_what_pools_have_here(folder: Path) -> None:
    done = run_command(folder, "doctor")
    assert (done.code, done.err) == (0, ""), done.out
    for what in ("pidfd", "shared memory", "uvloop", "start methods", "memory limit"):
        assert what in done.out
    assert "✗" not in done.out
    assert "\x1b" not in done.out
    found = json.loads(run_command(folder, "doctor", "--json").out)
    assert found["ok"] is True
    assert found.keys() == {"ok", "platform"}
    assert {"pidfd", "start methods"} <= {item["name"] for item in found["platform"]}


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_doctor_ends_with_1_if_pools_cannot_work_here(
    more: list[str], tmp_path: Path
) -> None:
    code = f"""
import sys
from asyncpool._cli import doctor, main
doctor.examine = lambda: [doctor.Finding("pools", "bad", "it is missing")]
sys.argv = ["asyncpool", "doctor", *{more!r}]
main()
"""
    done = run_code(tmp_path, code)
    assert (done.code, done.err) == (1, "")
    if more:
        finding = {"name": "pools", "state": "bad", "detail": "it is missing"}
        assert json.loads(done.out) == {"ok": False, "platform": [finding]}
    else:
        assert "it is missing" in done.out


COMMANDS = ("map", "call", "doctor", "completion")
SERVERS = ("serve", "status", "reload", "resize", "stop")


@pytest.mark.parametrize("asked", [[], *([name] for name in (*COMMANDS, *SERVERS))])
def test_help(folder: Path, asked: list[str]) -> None:
    done = run_command(folder, *asked, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: asyncpool {''.join(asked)}")
    assert all(len(line) <= 80 for line in done.out.splitlines()), done.out


def test_the_documented_options_are_those_that_there_are(folder: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for name in ("map", "call", "doctor"):
        shown = run_command(folder, name, "--help").out
        options = set(re.findall(r"(--[a-z][a-z-]+)", shown)) - {"--help"}
        assert options
        missing = {option for option in options if f"`{option}" not in text}
        assert not missing


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(folder: Path, shell: str) -> None:
    done = run_command(folder, "completion", shell)
    assert done.code == 0
    assert "_ASYNCPOOL_COMPLETE" in done.out
    completed = subprocess.run(
        [sys.executable, "-m", "asyncpool"],
        cwd=folder,
        env={
            **command_environment(),
            "_ASYNCPOOL_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": "asyncpool map --jo",
            "COMP_CWORD": "2" if shell != "fish" else "--jo",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--journal" in completed.stdout


@pytest.mark.parametrize(
    "asked",
    [
        ["call", "work:greet", "you"],
        ["call", "work:greet", "you", "--json"],
        ["map", "--help"],
        ["completion", "bash"],
    ],
)
@pytest.mark.parametrize("is_full", [True, False])
def test_a_stdout_that_takes_nothing_is_told(
    folder: Path, asked: list[str], *, is_full: bool
) -> None:
    if is_full and not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    if is_full:
        stdout = os.open("/dev/full", os.O_WRONLY)
        problem = "asyncpool: cannot write stdout: No space left on device\n"
    else:
        reader, stdout = os.pipe()
        os.close(reader)
        problem = ""
    done = finish_command(start_command(folder, *asked, stdout=stdout))
    os.close(stdout)
    assert (done.code, done.err) == (3 if is_full else 141, problem)


@pytest.mark.parametrize(
    "interrupted",
    [
        "builtins.__import__ = interrupt",  # while it begins
        "import asyncpool._cli.doctor as it; it.examine = interrupt",
    ],
)
def test_ctrl_c_at_any_moment_is_no_traceback(interrupted: str, tmp_path: Path) -> None:
    code = f"""
import builtins, sys
from asyncpool._cli import main
def interrupt(*args, **kwargs): raise KeyboardInterrupt
{interrupted}
sys.argv = ["asyncpool", "doctor"]
main()
"""
    done = run_code(tmp_path, code)
    assert (done.code, done.out, done.err) == (130, "", "")


def test_a_command_that_asks_a_pool_imports_none(folder: Path) -> None:
    code = (
        "import sys\n"
        "from asyncpool._cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'asyncio', 'asyncpool.pool', 'rich'} & {*sys.modules}))"
    )
    done = run_code(folder, code, "stop", "nobody")
    assert (done.code, done.out) == (1, "[]\n")
    assert "there is no pool or server named nobody" in done.err
    done = run_code(folder, code, "call", "math:factorial", "3")
    assert (done.code, done.out) == (0, "6\n['asyncio', 'asyncpool.pool', 'rich']\n")


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    asked, within = ("call", "math:factorial", "3"), 'rmdir ../gone; exec "$@"'
    done = finish_command(start_command(folder, *asked, within=within))
    problem = "asyncpool: the current folder was removed: change to another\n"
    assert (done.code, done.err) == (2, problem)


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_extra_it_says_what_to_install(package: str, folder: Path) -> None:
    done = run_without(folder, package, "call", "math:factorial", "3")
    assert done.code == 2
    assert done.err == (
        f"asyncpool: the command line needs {package}, which is not installed: "
        "pip install 'asyncpool-supervised[cli]'\n"
    )


def test_progress_is_drawn_at_a_terminal(folder: Path) -> None:
    (folder / "in.jsonl").write_text("".join(f"{n}\n" for n in range(60)))
    done = in_terminal(folder, "map", "work:slow", "in.jsonl", "-o", "out")
    assert done.code == 1
    assert (done.out, len((folder / "out").read_text().splitlines())) == ("", 58)
    screen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.err)
    frames = [line for line in re.split(r"[\r\n]+", screen) if "work:slow" in line]
    assert len(frames) > 2, "it is not live"
    assert re.search(r" \d+/60 +\d+/s +ETA 0:0\d", screen)
    assert re.search(r" 60/60 .* 2 failed +1 restarts +\d+ MB", frames[-1])
    assert "60 done in 0:0" in screen
    assert "\x1b[" in done.err


def test_nothing_is_drawn_beside_a_summary_for_machines(folder: Path) -> None:
    (folder / "in.jsonl").write_text("".join(f"{n}\n" for n in range(20)))
    done = in_terminal(folder, "map", "work:slow", "in.jsonl", "-o", "out", "--json")
    assert done.code == 1
    assert json.loads(done.err)["done"] == 20


def test_ctrl_c_at_a_terminal(folder: Path) -> None:
    (folder / "in.jsonl").write_text("1\n2\n")
    done = in_terminal(
        folder,
        *("map", "work:wait", "in.jsonl", "-o", "out", "--journal", "run.db"),
        keys={"0/2": b"\x03", "again ends at once": b"\x03"},
    )
    assert done.code == 130
    assert "interrupted" in done.err
    assert "this goes on:\r\n    asyncpool map work:wait in.jsonl" in done.err
    assert "Traceback" not in done.err


@pytest.mark.skipif(sys.platform != "linux", reason="script(1) differs elsewhere")
def test_results_at_a_terminal_are_not_drawn_over(folder: Path) -> None:
    ours = folder / "screen"
    (folder / "in.jsonl").write_text("1\n2\n")
    command = f"{shlex.quote(sys.executable)} -m asyncpool map work:slow in.jsonl"
    subprocess.run(
        ["script", "-qec", command, str(ours)],
        cwd=folder,
        env=command_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    assert "restarts" not in ours.read_text()
    assert '{"index": 1, "input": 2, "result": 2}' in ours.read_text()
