"""All of the decisions together.

How jobs and workers end, what replaces them, how a pool closes.
"""
