"""What the pool and its processes send each other, and what is in the memory that they share.

Frames, messages, log records, heartbeats and stacks.
"""
