"""The pool's ends of what it shares with a worker.

Channels, jobs and large buffers on their way, shared memory, pages.
"""
