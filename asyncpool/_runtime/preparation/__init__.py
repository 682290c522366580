"""What workers get of the service's own.

Its ``__main__``, its context variables, and what each worker calls first.
"""
