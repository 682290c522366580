"""All that a pool decides.

How jobs and workers come and end, what replaces workers, and how a pool closes.
"""
