"""What runs in the other processes: the launcher and the workers.

Only the standard library and ``_core``: a worker must start light.  Nothing here is
imported by the pool's process; it is started by name.
"""
