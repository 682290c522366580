"""What every other room uses.

The machine, threads, callbacks, timers, events, the loop that a pool belongs to.
"""
