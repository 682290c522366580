"""What runs in the other processes: the launcher and the workers.

This package imports only the standard library, ``errors``, ``_wire``, and ``_sandbox`` where there
is one, because a worker must be small and start fast.  Of it the pool's process imports only
``api``; the rest it starts by name.

A forked worker shares the launcher's memory, but it gets its own copy of every page that it
writes to.  Running Python code writes to pages everywhere, for reference counts and inline
caches.  So the code that every worker runs avoids some modules.  ``threading`` would cost
each worker 400 KB, most of it for its clean-up after a fork.  ``ctypes`` would cost 200 KB,
the enumerations of ``signal`` another 200 KB, and a thread started by ``threading`` 150 KB.
An idle worker has some 3 MB; with all of these it would have 4.  A worker imports them only
when a job needs them.
"""
