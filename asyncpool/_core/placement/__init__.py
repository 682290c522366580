"""Jobs that belong to certain workers.

A job may belong to a worker because of its key, a broadcast, or a session.  The balance
of the workers is here too.
"""
