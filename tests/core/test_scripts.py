"""Tests of asyncpool/_core/main/scripts.py."""

from __future__ import annotations

import textwrap

import pytest

from asyncpool._core.main.scripts import Origin, Script, recognise

GUARDED = """
def work(): pass
if __name__ == "__main__":
    work()
"""


def look(
    source: str,
    *,
    module: str = "",
    path: str = "/a/script.py",
    interactive: bool = False,
    imported: bool = False,
) -> Script | None:
    code = textwrap.dedent(source).encode()
    return recognise(Origin(module, path, code, interactive, imported))


def names(source: str) -> Script:
    script = look(source + '\nif __name__ == "__main__": pass')
    assert script is not None
    return script


@pytest.mark.parametrize(
    "test",
    [
        '__name__ == "__main__"',
        '"__main__" == __name__',
        "__name__ in ('__main__',)",
        "__name__ in ['__main__', 'other']",
        "__name__ in {'__main__'}",
        '__name__ == "__main__" and DEBUG',
        'not __name__ != "__main__"',
        'DEBUG or __name__ == "__main__"',
        '__name__ != "__mp_main__"',
        '__name__ != "__main__"',
        '__name__ not in ("__main__",)',
    ],
)
def test_a_guard(test: str) -> None:
    assert look(f"def work(): pass\nif {test}:\n    work()") is not None


@pytest.mark.parametrize(
    "source",
    [
        "",
        "work()",
        "if DEBUG: work()",
        "if __name__: work()",
        "if __name__ == name: work()",
        "if __name__ in names: work()",
        "if __name__ in ('__main__', '__mp_main__'): work()",
        "if name == '__main__': work()",
        "if __name__ < '__main__': work()",
        "def main():\n    if __name__ == '__main__': work()",
        "class A:\n    if __name__ == '__main__': work()",
        "print('__main__', __name__)",
        "if __name__ == '__main__'",
        "\0",
    ],
)
def test_no_guard(source: str) -> None:
    assert look(source) is None


def test_a_guard_may_be_in_another_statement_and_in_elif() -> None:
    assert look("try:\n    if __name__ == '__main__': work()\nfinally: pass")
    assert look("if DEBUG: pass\nelif __name__ == '__main__': work()")


def test_only_a_file_that_nobody_adds_to_can_be_imported() -> None:
    assert look(GUARDED)
    assert look(GUARDED, path="") is None
    assert look(GUARDED, interactive=True) is None


def test_what_a_worker_has_imported_can_be_imported() -> None:
    assert look("x = 1") is None
    assert look("x = 1", imported=True)


@pytest.mark.parametrize(
    ("module", "name"), [("", ""), ("a.b", "a.b"), ("a.__main__", "a.__main__")]
)
def test_a_module_keeps_its_name(module: str, name: str) -> None:
    script = look(GUARDED, module=module)
    assert script is not None
    assert (script.module, script.path) == (name, "/a/script.py")


def test_a_folder_that_is_run_has_no_module() -> None:
    script = look(GUARDED, module="__main__")
    assert script is not None
    assert script.module == ""


def test_the_globals_that_an_import_defines() -> None:
    script = names(
        """
import os.path, sys as system
from a import b, c as d
x = y = 1
(p, [q, *r]) = t
n: int = 1
def f(inner): local = 1
async def g(): pass
class C:
    attribute = 1
for i in (j := t): k = 1
while True: m = 1
with t as w: pass
try: v = 1
except ValueError as e: u = 1
match t:
    case [h, *o]: pass
    case z: pass
if DEBUG: maybe = 1
else: otherwise = 1
items = [element for element in t]
"""
    )
    found = "os system b d x y p q r n f g C i j k m w v u h o z maybe otherwise items"
    assert script.own == set(found.split())
    assert script.importable == script.own


def test_what_is_defined_again_elsewhere_cannot_be_imported() -> None:
    script = look(
        """
        def f(): pass
        def g(): pass
        def h(): pass
        def set_up():
            global g
            def g(): pass
        if __name__ == "__main__":
            def f(): pass
            def only(): pass
        else:
            def h(): pass
        """
    )
    assert script is not None
    assert script.own == {"f", "g", "h", "set_up"}
    assert script.importable == {"h", "set_up"}


def test_what_is_only_done_in_main_may_stand_in_either_branch() -> None:
    script = look(
        """
        if __name__ != "__main__":
            def there(): pass
        else:
            def here(): pass
        """
    )
    assert script is not None
    assert script.own == script.importable == {"there"}
