"""What passes between the pool and its processes, and lies in the memory that they share.

Frames, messages, log records, heartbeats, stacks.
"""
