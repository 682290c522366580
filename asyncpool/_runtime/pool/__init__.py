"""The engine of a pool, and its parts.

It starts workers, brings them jobs, and sees to their end: it carries out what the core has decided.
"""
