"""The pure part of asyncpool: what to do, never how or when to do it.

Nothing in this package performs I/O, reads a clock, rolls a die, starts a task,
or logs.  Time and randomness come in as arguments; decisions go out as return
values.  ``tests/test_layers.py`` holds it to that.
"""
