"""What a pool counts and measures: durations, and how the jobs of each function end.

Nothing here decides anything, and the pool works the same without it.
"""
