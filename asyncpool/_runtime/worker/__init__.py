"""One worker as the pool sees it: its handle, its output, its logs and stacks."""
