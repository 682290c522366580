"""The process that starts workers, as the pool sees it, and the processes that it starts."""
