"""What a worker of a cluster does instead of jobs."""
