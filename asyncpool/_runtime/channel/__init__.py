"""The pool's ends of what it shares with a worker.

Channels, large buffers, shared memory, pages.
"""
