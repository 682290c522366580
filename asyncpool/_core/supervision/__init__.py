"""All of the decisions together.

How jobs and workers end, what replaces workers, and how a pool closes.
"""
