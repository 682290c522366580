"""Sandboxes: what is decided, the service's side, and the side of the worker that enters one."""
