"""The torture table: asyncpool and its peers through the same faults.

``python -m benchmarks.torture`` runs one *cell* per peer and fault, each in a
process of its own that a time limit ends, and judges what was observed by the one
table in :mod:`benchmarks.torture.rules`.

Nothing is imported here: every worker of every peer imports this package.
"""
