"""The pool's side of one worker: its handle, its output, its logs and stacks."""
