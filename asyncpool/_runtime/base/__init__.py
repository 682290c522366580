"""What every other room uses.

The machine, threads, callbacks, timers, events, and the event loop that a pool belongs to.
"""
