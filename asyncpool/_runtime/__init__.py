"""The service's side of asyncpool: sockets, processes, tasks and futures.

What can be decided without them is decided in ``_core``.
"""
