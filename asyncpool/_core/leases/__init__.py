"""Leases in an outside system: which one is renewed next, when, and which are given up.

The calls themselves are made in ``_runtime/job/lease_renewals.py``.
"""
