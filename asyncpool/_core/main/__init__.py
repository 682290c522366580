"""Functions, classes and globals of ``__main__``.

What a script is, and how what it has gets to workers, by reference or by value.
"""
