"""The pool's side of one worker: its handle, its connections, what it is told, and its stacks."""
