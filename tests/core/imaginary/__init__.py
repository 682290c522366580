"""A shell whose processes exist only as dictionary entries.

It does what :class:`asyncpool._engine.engine.Engine` and the parts of a
pool do with the pure core, keeps books of its own, and checks every command against them.  What it
checks are the promises of the design, so a failure here is a broken promise.
"""
