"""Calls and outcomes as plain data: what pools with a codec use instead of pickle.

Nothing here runs code that the bytes name.  A pool imports it only if it has a codec, and so do
its workers.
"""
