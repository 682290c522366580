"""``asyncpool map`` as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import (
    command_environment,
    finish_command,
    lines,
    numbers,
    run_code,
    run_command,
    start_command,
    wait_until,
    write_module,
)
from tests.helpers.patience import PATIENCE
from tests.helpers.traces import read_trace

WORK = """
    import os, signal, sys, time
    from pathlib import Path

    def double(n):
        return n * 2

    def picky(n):
        if n == 1:
            raise ValueError("not this one")
        if n == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if n == 3:
            while True:
                time.sleep(1)
        if n == 4:
            return object()
        if n == 5:
            sys.exit(3)
        return n

    def counted(n):
        with Path("attempts").open("a") as log:
            log.write("+")
        if n == 8:
            held = bytearray(b"x") * (1 << 28)
            time.sleep(60)
        return picky(n)

    def keywords(name, size):
        return f"{name} has {size}"

    def shout(text):
        print("heard", text)
        return text.upper()

    def size(path):
        return os.path.getsize(path)

    def wait(n):
        with Path("begun").open("a") as log:
            log.write(f"{n}\\n")
        time.sleep(60)

    def once_bad(n):
        if n % 2 and not Path("good").exists():
            raise RuntimeError("later")
        with Path("begun").open("a") as log:
            log.write(f"{n}\\n")
        return n
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    write_module(tmp_path, WORK)
    return tmp_path


def test_json_lines_in_their_order(folder: Path) -> None:
    numbers(folder, 1000)
    done = run_command(folder, "map", "work:double", "in.jsonl", "-o", "out.jsonl")
    assert (done.code, done.out) == (0, "")
    assert lines(folder / "out.jsonl") == [
        {"index": n, "input": n, "result": n * 2} for n in range(1000)
    ]
    assert done.err.startswith("1,000 done in 0:0")
    assert "\x1b" not in done.err, "colours, although that is no terminal"
    assert not (folder / "failed.jsonl").exists()


def test_each_failure_costs_one_item(folder: Path) -> None:
    numbers(folder, 8)
    done = run_command(folder, "map", "work:picky", "in.jsonl", "--timeout", "0.5")
    assert done.code == 1
    assert [json.loads(line)["index"] for line in done.out.splitlines()] == [0, 6, 7]
    assert "5 failed, see failed.jsonl" in done.err
    failed = lines(folder / "failed.jsonl")
    assert [item["input"] for item in failed] == [1, 2, 3, 4, 5]
    raised, crashed, hung, odd, exited = (item["error"] for item in failed)
    assert (raised["kind"], raised["type"]) == ("raised", "ValueError")
    assert raised["message"] == "not this one"
    assert "in picky" in raised["traceback"]
    assert "_cli" not in raised["traceback"], "frames of ours are in the way"
    assert crashed["kind"] == "crash"
    assert crashed["crashes"][0]["signal"] == "SIGKILL"
    assert hung["kind"] == "timeout"
    assert "in picky" in hung["stack"]
    assert "cannot be written as JSON: object is not" in odd["message"]
    assert (exited["type"], exited["message"]) == ("SystemExit", "3")


def test_what_json_does_not_know_is_not_written(folder: Path) -> None:
    (folder / "in.jsonl").write_text("1\nNaN\n-Infinity\n")
    done = run_command(folder, "map", "work:double", "in.jsonl", "--bare")
    assert (done.code, done.out) == (1, "2\n")
    failed = lines(folder / "failed.jsonl")
    assert [item["input"] for item in failed] == ["NaN", "-Infinity"]
    for item in failed:
        text = item["error"]["message"]
        assert text.startswith("the result cannot be written as JSON: Out of range")


@pytest.mark.parametrize(
    ("item", "kind", "again"),
    [
        (1, "raised", "error"),
        (2, "crash", "crash"),
        (3, "timeout", "timeout"),
        pytest.param(
            8,
            "out of memory",
            "out-of-memory",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
        ),
    ],
)
def test_there_is_another_attempt_after_what_is_named_only(
    folder: Path, item: int, kind: str, again: str
) -> None:
    (folder / "in.jsonl").write_text(f"{item}\n")
    kinds = {"error", "crash", "hung", "timeout", "out-of-memory"}
    for named, attempts in ((kinds - {again}, 1), ({again}, 2)):
        asked = [word for name in sorted(named) for word in ("--retry-on", name)]
        asked += ["--max-attempts", "2", "--timeout", "1", "--kill-memory", "100M"]
        (folder / "attempts").unlink(missing_ok=True)
        run_command(folder, "map", "work:counted", "in.jsonl", *asked)
        (failed,) = lines(folder / "failed.jsonl")
        assert failed["error"]["kind"] == kind
        assert (folder / "attempts").read_text() == "+" * attempts


def test_csv_gives_keywords(folder: Path) -> None:
    (folder / "in.csv").write_text('\ufeffname,size\r\na,1\r\n"b\nc",2\r\nshort\r\n')
    done = run_command(folder, "map", "work:keywords", "in.csv", "--bare")
    assert done.out == '"a has 1"\n"b\\nc has 2"\n'
    (failed,) = lines(folder / "failed.jsonl")
    assert failed["error"]["message"].startswith("the record has 1 fields")


# How Python says that there are too many brackets.
DEEP = "Stack overflow" if sys.version_info >= (3, 14) else "maximum recursion depth"


@pytest.mark.parametrize(
    ("name", "content", "shown", "problem"),
    [
        ("in.jsonl", b"1\n{x\n3\n", "{x", "it cannot be read as JSON: Expecting"),
        (
            "in.jsonl",
            b"1\n%s\n3\n" % (b"[" * 100_000),
            "[" * 100_000,
            f"it cannot be read as JSON: {DEEP}",
        ),
        ("in.jsonl", b'1\n"\xff"\n3\n', '"\\xff"', "it is not UTF-8: "),
        ("in.txt", b"1\n\xff\n3\n", "\\xff", "it is not UTF-8: "),
        ("in.csv", b"n\n1\n\xff\n3\n", '{"n": "\\xff"}', "it is not UTF-8: "),
        ("in.csv", b"n\n1\n2,2\n3\n", ["2", "2"], "the record has 2 fields"),
    ],
)
def test_an_item_that_cannot_be_read_fails_by_itself(
    folder: Path, name: str, content: bytes, shown: object, problem: str
) -> None:
    write_module(folder, "def same(n): return int(n)\n", "same")
    (folder / name).write_bytes(content)
    done = run_command(folder, "map", "same:same", name, "--bare")
    assert (done.code, done.out) == (1, "1\n3\n")
    (failed,) = lines(folder / "failed.jsonl")
    assert (failed["index"], failed["input"]) == (1, shown)
    assert failed["error"]["type"] == "InputError"
    assert failed["error"]["message"].startswith(problem)


def test_what_is_before_a_broken_record_is_done(folder: Path) -> None:
    records = "".join(f"{n},{n}\n" for n in range(5000))
    (folder / "in.csv").write_text(f'name,size\n{records}"a,1\n')
    done = run_command(folder, "map", "work:keywords", "in.csv", "--bare")
    assert done.code == 2
    assert done.out == "".join(f'"{n} has {n}"\n' for n in range(5000))
    problem, tally = done.err.splitlines()
    assert problem == (
        f"asyncpool: {folder}/in.csv, line 5002: a quoted field of the record there has "
        "no end"
    )
    assert tally.startswith("5,000 done in 0:0")


def test_plain_lines_of_stdin(folder: Path) -> None:
    done = run_command(folder, "map", "work:shout", "-", stdin="é\r\n\nlast")
    assert [json.loads(line) for line in done.out.splitlines()] == [
        {"index": 0, "input": "é", "result": "É"},
        {"index": 1, "input": "", "result": ""},
        {"index": 2, "input": "last", "result": "LAST"},
    ]
    assert "heard last" in done.err, "what workers print goes where no results go"


def test_paths_that_match(folder: Path) -> None:
    (folder / "b" / "c").mkdir(parents=True)
    for name in ("b/c/x.txt", "b/y.txt", "a.txt", "z.png"):
        (folder / name).write_text(name)
    done = run_command(folder, "map", "work:size", "--glob", "**/*.txt")
    assert [json.loads(line) for line in done.out.splitlines()] == [
        {"index": 0, "input": "a.txt", "result": 5},
        {"index": 1, "input": "b/c/x.txt", "result": 9},
        {"index": 2, "input": "b/y.txt", "result": 7},
    ]


def test_a_summary_for_machines(folder: Path) -> None:
    numbers(folder, 3)
    done = run_command(folder, "map", "work:picky", "in.jsonl", "--json")
    summary = json.loads(done.err)
    assert summary["exit_code"] == done.code == 1
    assert (summary["done"], summary["failed"], summary["crashes"]) == (3, 2, 1)
    assert summary["failures"] == "failed.jsonl"


@pytest.mark.parametrize("order", [[], ["--unordered"]], ids=["ordered", "unordered"])
def test_nothing_runs_twice_with_a_journal_but_what_failed_on_demand(
    folder: Path, order: list[str]
) -> None:
    numbers(folder, 100)
    asked = ["map", "work:once_bad", "in.jsonl", "-o", "out", "--journal", "run.db"]
    asked += order
    assert run_command(folder, *asked).code == 1
    begun = (folder / "begun").read_text()
    assert len(begun.split()) == 50
    results, failures = (folder / "out").read_text(), lines(folder / "failed.jsonl")
    again = run_command(folder, *asked)
    assert again.code == 1
    assert "100 items already, 50 of them failed" in again.err
    assert (folder / "begun").read_text() == begun
    assert (folder / "out").read_text() == results
    assert lines(folder / "failed.jsonl") == failures
    (folder / "good").touch()
    (folder / "begun").unlink()
    done = run_command(folder, *asked, "--retry-failed")
    assert done.code == 0, done.err
    retried = sorted(int(n) for n in (folder / "begun").read_text().split())
    assert retried == list(range(1, 100, 2))
    found = lines(folder / "out")
    if order:
        found.sort(key=lambda line: int(line["index"]))
    assert found == [{"index": n, "input": n, "result": n} for n in range(100)]
    assert not (folder / "failed.jsonl").exists()


def test_a_grown_input_goes_on(folder: Path) -> None:
    numbers(folder, 10)
    asked = ("map", "work:double", "in.jsonl", "-o", "out", "--journal", "run.db")
    run_command(folder, *asked)
    numbers(folder, 15)
    assert run_command(folder, *asked).code == 0
    assert [line["result"] for line in lines(folder / "out")] == list(range(0, 30, 2))


@pytest.mark.parametrize("change", ["removed", "shortened"])
def test_an_output_that_is_gone_is_written_again(folder: Path, change: str) -> None:
    numbers(folder, 10)
    asked = ("map", "work:once_bad", "in.jsonl", "-o", "out", "--journal", "run.db")
    run_command(folder, *asked)
    results, out = (folder / "out").read_text(), folder / "out"
    if change == "removed":
        out.unlink()
    else:
        os.truncate(out, 20)
    run_command(folder, *asked)
    assert out.read_text() == results
    assert len((folder / "begun").read_text().split()) == 5


def test_what_is_written_again_counts_once(folder: Path) -> None:
    numbers(folder, 10)
    asked = ("map", "work:double", "in.jsonl", "-o", "out", "--journal", "run.db")
    run_command(folder, *asked, "--unordered")
    (folder / "out").unlink()
    summary = json.loads(run_command(folder, *asked, "--unordered", "--json").err)
    assert (summary["done"], summary["from_journal"]) == (10, 10)


def test_stdin_goes_on_when_it_is_fed_the_same(folder: Path) -> None:
    asked = ("map", "work:once_bad", "-", "--format", "jsonl", "--journal", "run.db")
    run_command(folder, *asked, stdin="0\n2\n")
    done = run_command(folder, *asked, stdin="0\n2\n4\n")
    assert [json.loads(line)["result"] for line in done.out.splitlines()] == [0, 2, 4]
    assert sorted((folder / "begun").read_text().split()) == ["0", "2", "4"]
    changed = run_command(folder, *asked, stdin="0\n9\n4\n")
    assert changed.code == 2
    assert "item 1 of - is not what it was when run.db was begun" in changed.err


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (["work:picky", "in.jsonl"], "of the function work:double, not work:picky"),
        (["work:double", "other.jsonl"], "of the input"),
        (["work:double", "in.jsonl", "--unordered"], "of the run without --unordered"),
        (["work:double", "in.jsonl", "--bare"], "of the run without --bare"),
        (
            ["work:double", "in.jsonl", "--format", "lines"],
            "items as json, not as text",
        ),
    ],
)
def test_another_run_is_refused(
    folder: Path, change: list[str], complaint: str
) -> None:
    numbers(folder, 3)
    numbers(folder, 3, "other.jsonl")
    rest = ("-o", "out", "--journal", "run.db")
    assert run_command(folder, "map", "work:double", "in.jsonl", *rest).code == 0
    done = run_command(folder, "map", *change, *rest)
    assert done.code == 2
    assert complaint in done.err
    assert "Name another journal, or remove this one" in done.err
    assert len(lines(folder / "out")) == 3, "the output was touched"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0\n1\n", "had 6 bytes and now has 4"),
        ("0\n5\n2\n", "item 1 of"),
        ("0\n\n1\n\n", "ends before item 2"),
    ],
)
def test_another_input_is_noticed(folder: Path, text: str, complaint: str) -> None:
    numbers(folder, 3)
    asked = ("map", "work:double", "in.jsonl", "-o", "out", "--journal", "run.db")
    run_command(folder, *asked)
    (folder / "in.jsonl").write_text(text)
    done = run_command(folder, *asked)
    assert done.code == 2
    assert complaint in done.err


def test_two_runs_on_one_journal_are_refused(folder: Path) -> None:
    numbers(folder, 3)
    asked = ("map", "work:wait", "in.jsonl", "-o", "out", "--journal", "run.db")
    first = start_command(folder, *asked)
    wait_until(folder / "begun", 1)
    second = run_command(folder, *asked)
    assert second.code == 2
    assert second.err == (
        "asyncpool: run.db is in use by another run: wait for its end, or stop it\n"
    )
    # One signal twice could come as one.
    os.kill(first.pid, signal.SIGINT)
    os.kill(first.pid, signal.SIGTERM)
    assert finish_command(first).code in {128 + signal.SIGINT, 128 + signal.SIGTERM}


@pytest.mark.parametrize("as_json", [False, True], ids=["people", "machines"])
@pytest.mark.parametrize(
    "begins",
    ["asyncpool._cli.map.run.open_input", "asyncio.run"],
    ids=["opening", "starting"],
)
def test_an_interrupt_before_the_first_item_is_told_as_any(
    folder: Path,
    begins: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    numbers(folder, 3)
    module, _, name = begins.rpartition(".")
    code = f"""
import sys
from asyncpool.__main__ import main
import {module} as module
def interrupt(*args, **kwargs):
    if module.__name__ == "asyncio":
        args[0].close()
    raise KeyboardInterrupt
module.{name} = interrupt
sys.argv = ["asyncpool", "map", "math:factorial", "in.jsonl", *sys.argv[1:]]
main()
"""
    done = run_code(folder, code, *["--json"] * as_json)
    assert (done.code, done.out) == (128 + signal.SIGINT, "")
    if as_json:
        told = json.loads(done.err)
        assert (told["exit_code"], told["problem"]) == (130, "interrupted")
        assert (told["done"], told["failed"]) == (0, 0)
    else:
        assert done.err.splitlines() == [
            "asyncpool: interrupted",
            "0 done in 0:00",
            "with --journal FILE the next run could go on here",
        ]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on(folder: Path, number: int, times: int) -> None:
    write_module(
        folder,
        """
        import os, time

        def f(n):
            with open("begun", "a") as log:
                log.write(f"{n}\\n")
            if n >= 20 and not os.path.exists("good"):
                time.sleep(0.5 if os.path.exists("short") else 60)
            return n
        """,
    )
    numbers(folder, 1000)
    asked = ("map", "work:f", "in.jsonl", "-o", "out", "--journal", "run.db", "-w", "2")
    if times == 1:
        (folder / "short").touch()
    process = start_command(folder, *asked)
    wait_until(folder / "begun", 22)
    os.kill(process.pid, number)
    if times == 2:  # another one, since two of a kind may come as one
        os.kill(process.pid, signal.SIGHUP)
    done = finish_command(process)
    assert done.code in {128 + number, 128 + signal.SIGHUP if times == 2 else 0}
    assert "asyncpool: interrupted" in done.err
    assert "nothing is lost; this goes on:\n    asyncpool map work:f" in done.err
    finished = lines(folder / "out")
    assert [line["result"] for line in finished] == list(range(len(finished)))
    database = sqlite3.connect(folder / "run.db")
    known = {item for (item,) in database.execute("SELECT item FROM items")}
    database.close()
    if times == 1:  # else what is on its way is not waited for
        assert len(known) >= 20
    (folder / "begun").unlink()
    (folder / "good").touch()
    assert run_command(folder, *asked).code == 0
    begun = {int(n) for n in (folder / "begun").read_text().split()}
    assert begun == set(range(1000)) - known
    assert [line["result"] for line in lines(folder / "out")] == list(range(1000))


def test_a_reader_that_goes_away_ends_it_quietly(folder: Path) -> None:
    numbers(folder, 100_000)
    process = start_command(folder, "map", "work:double", "in.jsonl", "--bare")
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(PATIENCE) == 141
    assert process.stdin is not None
    process.stdin.close()
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told(folder: Path) -> None:
    numbers(folder, 10)
    asked = ("map", "work:once_bad", "in.jsonl", "--journal", "run.db", "-o")
    done = run_command(folder, *asked, "/dev/full")
    assert done.code == 3
    assert done.err.startswith(
        "asyncpool: cannot write /dev/full: No space left on device\n0 done in"
    )
    assert "nothing is lost; this goes on:" in done.err
    database = sqlite3.connect(folder / "run.db")
    known = {item for (item,) in database.execute("SELECT item FROM items WHERE ok")}
    database.close()
    assert known
    (folder / "begun").unlink()
    assert run_command(folder, *asked, "out", "--failed", "bad").code == 1
    log = folder / "begun"
    begun = {int(n) for n in log.read_text().split()} if log.exists() else set()
    assert begun == set(range(0, 10, 2)) - known
    assert len(lines(folder / "out")) == len(lines(folder / "bad")) == 5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (["work:double", "-o", "out", "--failed", "/dev/full"], None),
        (["work:keywords", "-o", "out", "--failed", "/dev/full"], "/dev/full"),
        (["work:double"], "stdout"),
    ],
)
def test_the_file_that_has_no_room_is_named(
    folder: Path, asked: list[str], named: str | None
) -> None:
    numbers(folder, 3)
    with Path("/dev/full").open("w") as full:
        process = start_command(
            folder, "map", asked[0], "in.jsonl", *asked[1:], stdout=full.fileno()
        )
        err = finish_command(process).err
    if named is None:
        assert (process.returncode, err.splitlines()[0][:9]) == (0, "3 done in")
    else:
        problem = f"asyncpool: cannot write {named}: No space left on device"
        assert (process.returncode, err.splitlines()[0]) == (3, problem)


def test_a_closed_stdout_is_told(folder: Path) -> None:
    numbers(folder, 3)
    asked, within = ("map", "work:double", "in.jsonl"), 'exec "$@" >&-'
    for more, code in (((), 2), (("-o", "out"), 0)):
        done = finish_command(start_command(folder, *asked, *more, within=within))
        assert done.code == code
        assert ("stdout is closed: name a file by --output." in done.err) == (code == 2)
    assert len(lines(folder / "out")) == 3


def test_a_journal_without_room_loses_nothing(folder: Path) -> None:
    shutil.copy(folder / "work.py", folder / "limited.py")
    with (folder / "limited.py").open("a") as file:
        # In the first worker, for its parent's files: the command's.
        file.write(
            "\ndef fill(n):\n"
            "    import resource\n"
            "    if n == 50:\n"
            "        pid = int(Path('pid').read_text())\n"
            "        bounds = 40_000, resource.RLIM_INFINITY\n"
            "        resource.prlimit(pid, resource.RLIMIT_FSIZE, bounds)\n"
            "    return 'x' * 1000\n"
        )
    numbers(folder, 300)
    asked = ("map", "limited:fill", "-", "--journal", "run.db", "--format", "jsonl")
    # SIGXFSZ would end it; what ignores it is told by the write.
    within = "trap '' XFSZ; echo $$ > pid; exec \"$@\""
    process = start_command(folder, *asked, stdout=subprocess.DEVNULL, within=within)
    stdin = "".join(f"{n}\n" for n in range(300))
    done = finish_command(process, stdin)
    assert done.code == 3, done.err
    assert "cannot write run.db: " in done.err
    database = sqlite3.connect(folder / "run.db")
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
    (folder / "pid").write_text(f"{os.getpid()}\n")
    write_module(folder, "def fill(n):\n    return 'x' * 1000\n", "limited")
    again = run_command(folder, *asked, stdin=stdin)
    assert (again.code, again.out.count("\n")) == (0, 300)


@pytest.mark.parametrize("more", [[], ["--retry-failed"], ["-o", "other"]])
def test_a_damaged_journal_is_told(folder: Path, more: list[str]) -> None:
    numbers(folder, 3000)
    asked = ("map", "work:double", "in.jsonl", "--journal", "run.db")
    assert run_command(folder, *asked, "-o", "out").code == 0
    good = (folder / "run.db").read_bytes()
    pages = len(good) // 4096
    for page in (0, 1, 2, pages // 2):
        bad = bytearray(good)
        bad[page * 4096 : (page + 1) * 4096] = b"\xa5" * 4096
        (folder / "run.db").write_bytes(bad)
        done = run_command(folder, *asked, *(more or ("-o", "out")))
        assert (done.code, done.out) == (2, "")
        problem = (
            "is damaged: name another journal, or remove this one to begin anew"
            if page
            else "is not a journal: name another file"
        )
        assert done.err == f"asyncpool: run.db {problem}\n"


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (["work:double"], "Give either INPUT or --glob PATTERN."),
        (
            ["work:double", "no.jsonl"],
            "cannot read no.jsonl: No such file or directory",
        ),
        (["work:double", "--glob", "*", "--format", "csv"], "--format is about INPUT"),
        (["work:double", "in.jsonl", "-w", "4097"], "4097 is not in the range"),
        (["work:double", "."], "cannot read .: Is a directory"),
        (["work:double", "--glob", "*.png"], "no file matches '*.png'"),
        (["work:doble", "in.jsonl"], "work has no doble: did you mean double?"),
        (["work", "in.jsonl"], "'work' does not name a function"),
        (["work.py:double", "in.jsonl"], "is a file: name the module, such as work"),
        (["wrok:double", "in.jsonl"], "there is no module 'wrok' here"),
        (["work:WORK", "in.jsonl"], "work has no WORK"),
        (["work:os", "in.jsonl"], "work:os is not a function, but of type module"),
        (["work:double", "in.jsonl", "-o", "in.jsonl"], "--output and INPUT are the"),
        (["work:double", "in.jsonl", "-o", "no/out"], "no for --output."),
        (["work:double", "in.jsonl", "-o", "."], "--output is a folder, not a file: ."),
        (["work:double", "in.jsonl", "--failed", ".."], "--failed is a folder"),
        (["work:double", ""], "INPUT is empty: name a file."),
        (["work:double", "in.jsonl", "-o", ""], "--output is empty: name a file."),
        (["work:double", "in.jsonl", "--failed", ""], "--failed is empty"),
        (["work:double", "in.jsonl", "--journal", ""], "--journal is empty"),
        (["work:double", "in.jsonl", "--timeout", "-1"], "is no number of seconds"),
        (
            ["work:double", "in.jsonl", "--kill-memory", "much"],
            "is no size, such as 512M",
        ),
        (["work:double", "in.jsonl", "--retry-failed"], "needs the --journal"),
        (["work:double", "in.jsonl", "--trace", "no/t.json"], "There is no folder"),
        (
            ["work:double", "in.jsonl", "--trace", "in.jsonl"],
            "--trace and INPUT are the",
        ),
        (
            ["work:double", "in.jsonl", "-o", "out", "--trace", "out"],
            "--trace and --output are the same file",
        ),
        (
            ["work:double", "in.jsonl", "--trace", "work.py"],
            "work.py is no trace, and this run would write over it: name another one by",
        ),
        (["work:double", "in.jsonl", "--journal", "work.py"], "is not a journal"),
        (["work:double", "in.jsonl", "--journal", "o.db"], "of another program"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    folder: Path, asked: list[str], complaint: str
) -> None:
    numbers(folder, 3)
    other = sqlite3.connect(folder / "o.db")
    other.execute("CREATE TABLE t (x)")
    other.close()
    done = run_command(folder, "map", *asked)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err
    assert (folder / "in.jsonl").read_text() == "0\n1\n2\n"


def test_a_module_that_cannot_be_imported_has_a_traceback_of_its_own(
    folder: Path,
) -> None:
    numbers(folder, 3)
    write_module(folder, "raise RuntimeError('broken')", "broken")
    process = start_command(folder, "map", "broken:f", "in.jsonl")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (2, "")
    assert "broken cannot be imported:" in err
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (
            ["work:double", "no.jsonl"],
            "cannot read no.jsonl: No such file or directory",
        ),
        (["work:doble", "in.jsonl"], "work has no doble: did you mean double?"),
        (
            ["work:double", "in.jsonl", "--outptu", "x"],
            "No such option '--outptu'. Did you mean '--output'?",
        ),
        (
            ["work:double", "in.jsonl", "--journal", "work.py"],
            "work.py is not a journal: name another file",
        ),
    ],
)
def test_mistakes_are_told_to_machines(
    folder: Path, asked: list[str], problem: str
) -> None:
    numbers(folder, 3)
    done = run_command(folder, "map", *asked, "--json")
    assert (done.code, done.out) == (2, "")
    summary = json.loads(done.err)
    assert (summary["exit_code"], summary["problem"]) == (2, problem)
    assert (summary["done"], summary["failed"], summary["failures"]) == (0, 0, None)
    good = run_command(folder, "map", "work:double", "in.jsonl", "--json")
    assert json.loads(good.err).keys() == summary.keys()


def test_a_mistake_costs_no_files_and_no_journal(folder: Path) -> None:
    numbers(folder, 3)
    rest = ("in.jsonl", "-o", "out", "--journal", "run.db")
    earlier = '{"index": 0, "input": 0, "error": {"kind": "raised"}}\n'
    for name in ("out", "failed.jsonl"):
        (folder / name).write_text(earlier)
    assert run_command(folder, "map", "work:doble", *rest).code == 2
    for name in ("out", "failed.jsonl"):
        assert (folder / name).read_text() == earlier
    done = run_command(folder, "map", "work:double", *rest)
    assert done.code == 0, done.err
    assert len(lines(folder / "out")) == 3


def test_a_run_under_nohup_outlives_its_terminal(folder: Path) -> None:
    numbers(folder, 1000)
    (folder / "go").touch()
    words = "-m asyncpool map work:double - -o out --format jsonl"
    process = subprocess.Popen(
        ["nohup", sys.executable, *words.split()],
        cwd=folder,
        env=command_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("1\n")
    process.stdin.flush()
    wait_until(folder / "out", 1)  # so its handlers are there
    os.kill(process.pid, signal.SIGHUP)
    done = finish_command(process, "2\n")
    assert done.code == 0, done.err
    assert [line["result"] for line in lines(folder / "out")] == [2, 4]


def test_a_module_that_crashes_costs_no_more_than_workers(folder: Path) -> None:
    numbers(folder, 3)
    write_module(folder, "import os; os.abort()", "deadly")
    process = start_command(folder, "map", "deadly:f", "in.jsonl")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (3, "")
    assert "SIGABRT" in err
    assert "Traceback" not in err


def test_unordered_results_are_written_as_they_are_finished(folder: Path) -> None:
    write_module(
        folder,
        """
        import time
        from pathlib import Path

        def f(n):
            while n == 0 and not Path("out").stat().st_size:
                time.sleep(0.01)
        """,
    )
    numbers(folder, 4)
    asked = ("in.jsonl", "-o", "out", "--unordered", "-w", "2", "--timeout", "10")
    assert run_command(folder, "map", "work:f", *asked).code == 0
    found = [line["index"] for line in lines(folder / "out")]
    assert sorted(found) == [0, 1, 2, 3]
    assert found[0] != 0


def test_order_does_not_wait_for_room(folder: Path) -> None:
    """The first item is the last one to be done, behind more than is held back."""
    write_module(
        folder,
        """
        import time
        from pathlib import Path

        def f(n):
            while n == 0 and not Path("go").exists():
                time.sleep(0.01)
            if n == 60_000:
                Path("go").touch()
        """,
    )
    numbers(folder, 70_000)
    done = run_command(folder, "map", "work:f", "in.jsonl", "-o", "out", "-w", "2")
    assert done.code == 0
    assert [line["index"] for line in lines(folder / "out")] == list(range(70_000))


def test_files_that_are_begun_anew_are_noted_first(folder: Path) -> None:
    numbers(folder, 10)
    asked = ("map", "work:double", "in.jsonl", "-o", "out", "--journal", "run.db")
    assert run_command(folder, *asked).code == 0
    (folder / "out").unlink()
    write_module(folder, "")
    assert run_command(folder, *asked).code == 2
    database = sqlite3.connect(folder / "run.db")
    query = "SELECT value FROM run WHERE name = 'position'"
    (position,) = database.execute(query).fetchone()
    database.close()
    assert json.loads(position)["output_bytes"] == 0


@pytest.mark.parametrize("times", [1, 2])
def test_a_second_signal_ends_what_is_running(folder: Path, times: int) -> None:
    write_module(
        folder,
        """
        import time
        from pathlib import Path

        def f(n):
            Path("begun").write_text("1\\n")
            time.sleep(4)  # less than an interrupted run gives it
            Path("finished").touch()
        """,
    )
    numbers(folder, 1)
    process = start_command(folder, "map", "work:f", "in.jsonl", "-o", "out")
    wait_until(folder / "begun", 1)
    os.kill(process.pid, signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == (
        "ending: running items have 5 s, Ctrl-C again ends at once\n"
    )
    if times == 2:
        os.kill(process.pid, signal.SIGINT)
    done = finish_command(process)
    assert done.code == 130
    assert "with --journal FILE the next run could go on here" in done.err
    assert (folder / "finished").exists() == (times == 1)
    assert len(lines(folder / "out")) == (1 if times == 1 else 0)


def test_a_run_leaves_a_trace(folder: Path) -> None:
    numbers(folder, 100)
    asked = ("map", "work:double", "in.jsonl", "-o", "out", "--trace", "trace.json")
    for _ in range(2):  # an older trace is replaced
        done = run_command(folder, *asked, "-w", "2")
        assert done.code == 0, done.err
    trace = read_trace(folder / "trace.json")
    assert trace.whole
    assert "asyncpool._cli.targets.call_item" in {it.name for it in trace.slices}
