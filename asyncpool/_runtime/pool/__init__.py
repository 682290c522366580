"""The supervisor, and what it does for workers.

Start them, ping them, replace them, see to their end.
"""
