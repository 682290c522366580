"""Calls, results and errors as bytes.

Large buffers go beside the pickle, and functions by number.
"""
