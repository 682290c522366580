"""A job as its caller sees it: the future, its progress, its lease, its time limits."""
