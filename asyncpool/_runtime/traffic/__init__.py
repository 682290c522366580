"""The way of jobs to workers and back, and what happens to jobs on it."""
