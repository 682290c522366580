"""The service's side of asyncpool: sockets, processes, tasks and futures; ``_core`` decides."""
