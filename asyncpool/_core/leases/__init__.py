"""Leases in an outside system: which one is renewed next, when, and which are given up.

``_runtime/job/lease_renewals.py`` makes the calls.
"""
