"""Calls of the operating system, for the pool and for its workers."""
