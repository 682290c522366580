"""Servers side by side, of the same application: ``python -m benchmarks --cluster``."""
