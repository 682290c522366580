"""Which job runs next, and where.

The queue by priority, the queues by key, what is in flight.
"""
