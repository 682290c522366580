"""The pool's side of one worker: its process, its channels, and what it says."""
