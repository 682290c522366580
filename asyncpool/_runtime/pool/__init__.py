"""The supervisor, and the parts of a pool that look after workers.

Start them, hear them, ping them, replace them, see to their end; carry out what is decided.
"""
