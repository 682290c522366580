"""The supervisor, and the parts of a pool that look after workers.

They start workers, hear them, ping them, replace them, and see to their end.  They carry out
what the core has decided.
"""
