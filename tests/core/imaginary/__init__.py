"""A shell whose processes exist only as dictionary entries.

It does what :class:`asyncpool._runtime.pool.supervisor.Supervisor` and the parts of a
pool do with the pure core, keeps books of its own, and checks every command against them.  What it checks
are the promises of the design, so a failure here is a broken promise.

It is one class in layers, each of which knows those below it alone:

* ``shell`` and ``jobs``: what happens, to workers and to jobs;
* ``commands``: what the core wants done about it;
* ``ends``: who is made to end, and why;
* ``lines``: who waits, and whose turn it is;
* ``books``, of ``process`` and the rest: what there is.
"""
