"""The work of a cluster's worker: it serves connections instead of running jobs."""
