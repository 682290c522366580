"""``asyncpool map``.

Read items, run them, write results, and remember in a journal what is done.
"""
