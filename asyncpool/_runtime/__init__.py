"""The shell of asyncpool: sockets, processes, tasks and futures; no decisions."""
