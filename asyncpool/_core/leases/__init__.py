"""Leases in an outside system: which one is renewed next, when, and which are given up.

``leasekeeper.py`` makes the calls.
"""
