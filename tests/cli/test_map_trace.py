"""``asyncpool map --trace``: a file that shows what each worker did when."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.command import run_command, write_module
from tests.helpers.traces import read_trace

WORK = """
    def double(n):
        return n * 2
"""


def test_a_run_leaves_a_trace(tmp_path: Path) -> None:
    write_module(tmp_path, WORK)
    (tmp_path / "in.jsonl").write_text("".join(f"{n}\n" for n in range(100)))
    args = ["map", "work:double", "in.jsonl", "-o", "out.jsonl", "-w", "2"]
    done = run_command(tmp_path, *args, "--trace", "trace.json")
    assert done.code == 0, done.err
    trace = read_trace(tmp_path / "trace.json")
    assert trace.whole
    names = {slice_.name for slice_ in trace.slices}
    assert "asyncpool._cli.targets.call_item" in names
    assert sum(name.endswith("call_item") for name in (s.name for s in trace.slices))
    again = run_command(tmp_path, *args, "--trace", "trace.json")
    assert again.code == 0, "an older trace is replaced"


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    write_module(tmp_path, WORK)
    (tmp_path / "in.jsonl").write_text("1\n2\n")
    (tmp_path / "precious.json").write_text('{"mine": 1}\n')
    args = ["map", "work:double", "in.jsonl", "-o", "out.jsonl", "-w", "1", "--trace"]
    done = run_command(tmp_path, *args, "precious.json")
    assert done.code == 2
    assert done.err.endswith(
        "Error: precious.json is no trace, and this run would write over it: name another one "
        "by --trace, or move it away.\n"
    )
    assert (tmp_path / "precious.json").read_text() == '{"mine": 1}\n'
    for path, text in (
        ("nowhere/t.json", "There is no folder"),
        ("out.jsonl", "--trace and --output are the same file"),
        ("in.jsonl", "--trace and INPUT are the same file"),
    ):
        done = run_command(tmp_path, *args, path)
        assert done.code == 2
        assert text in done.err
