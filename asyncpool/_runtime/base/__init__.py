"""What every other room uses.

The machine, threads, callbacks, events, the loop that a pool belongs to.
"""
