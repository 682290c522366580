"""Calls, results and errors as bytes.

Large buffers travel beside the pickle, and functions travel by number.
"""
