"""What a process needs to be a worker.

Its limits, its identity, its ``__main__``, its descriptors.
"""
