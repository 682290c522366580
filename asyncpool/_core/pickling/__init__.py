"""Calls, results and errors as bytes, with large buffers beside the pickle.

The functions that go by number.
"""
