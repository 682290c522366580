"""What users decide by arguments.

When to restart, when to recycle, how long a job may take, how often it is tried.
"""
