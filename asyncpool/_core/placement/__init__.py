"""Jobs that belong to certain workers.

By their key, by a broadcast, by a session; and which workers are too full.
"""
