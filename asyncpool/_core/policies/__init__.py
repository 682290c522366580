"""What users decide by arguments.

Such arguments say when the pool restarts or recycles a worker, how long a job may take,
and how often the pool tries it.
"""
