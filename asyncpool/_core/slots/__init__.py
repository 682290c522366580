"""One worker after another in each slot.

Its states, its starts and ends, how many slots there are.  What is decided comes out as
commands.
"""
