"""Functions, classes and globals of ``__main__``.

This is about what a script is, and how its parts get to workers: by reference or by
value.
"""
