"""Which job runs next, and in which worker.

Here are the queue by priority, the queues by key, and what is in flight.
"""
