"""Log records of jobs, on their way to the pool."""
