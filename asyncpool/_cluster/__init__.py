"""Servers: what is decided, the master's side, and the worker's side."""
