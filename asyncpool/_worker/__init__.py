"""What runs in the other processes: the launcher and the workers.

Only the standard library and ``_core``: a worker must start light.  Nothing here is
imported by the pool's process; it is started by name.

A forked worker shares the launcher's memory, but gets a copy of every page that it
touches, and running Python touches pages everywhere: reference counts, inline caches.
So what every worker does is done with the least: ``threading`` costs each worker 400 KB,
of which most is its clean-up after a fork; ``ctypes`` 200 KB; the enumerations of
``signal`` another 200 KB; to begin a thread through ``threading``, 150 KB.  An idle worker
has some 3 MB, all of these included it would have 4.  They are imported when a job, or
what it imports, asks for them.
"""
