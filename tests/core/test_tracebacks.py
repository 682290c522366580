"""What is left of a traceback for somebody who has not written this package."""

from __future__ import annotations

import traceback

import pytest

from asyncpool._core.base.tracebacks import users_own

CHAIN = """\
Traceback (most recent call last):
  File "/x/asyncpool/_worker/cluster/serve.py", line 1, in serve
    one()
    ~~~^^
  File "<frozen importlib._bootstrap>", line 2, in two
  File "/home/me/asyncpool/app.py", line 3, in three
    three()
ValueError: one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/asyncpool/cluster/_servers/asgi.py", line 4, in four
    four()
KeyError: 'two'
"""


def test_a_traceback_has_the_users_frames() -> None:
    assert (
        users_own(CHAIN)
        == """\
Traceback (most recent call last):
  File "/home/me/asyncpool/app.py", line 3, in three
    three()
ValueError: one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
KeyError: 'two'"""
    )


def test_a_group_of_exceptions_has_a_margin() -> None:
    def fail(file: str) -> None:
        exec(compile("raise KeyError(1)", file, "exec"), {})

    errors = list[Exception]()
    for file in ("/x/lib/python3/asyncio/tasks.py", "/home/me/app.py"):
        try:
            fail(file)
        except KeyError as error:
            errors.append(error)
    group = ExceptionGroup("two", errors)
    text = "".join(traceback.format_exception(group))
    assert "asyncio/tasks.py" in text
    shown = users_own(text)
    assert "asyncio/tasks.py" not in shown
    assert shown.count('/home/me/app.py", line 1, in <module>') == 1
    assert shown.count("KeyError: 1") == 2


def test_where_code_is_no_code() -> None:
    shown = users_own("""\
Traceback (most recent call last):
  File "/x/asyncpool/_worker/cluster/serve.py", line 1, in find_object
    importlib.import_module(module)
  File "/home/me/app.py", line 1
    def app(:
            ^
SyntaxError: invalid syntax
""")
    assert (
        shown
        == """\
Traceback (most recent call last):
  File "/home/me/app.py", line 1
    def app(:
            ^
SyntaxError: invalid syntax"""
    )


@pytest.mark.parametrize(
    "text", ["", 'Traceback\n  File "/x/asyncpool/_worker/a.py", line 1\nE: e\n']
)
def test_a_traceback_may_have_none(text: str) -> None:
    assert users_own(text) == ""


def test_what_is_not_ours_stays_as_it_is() -> None:
    with pytest.raises(KeyError) as caught:
        dict[str, int]()["lost"]
    text = "".join(traceback.format_exception(caught.value))
    assert users_own(text) == text.rstrip()
