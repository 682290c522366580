"""The setup of a worker process: its limits, identity, ``__main__`` and descriptors."""
