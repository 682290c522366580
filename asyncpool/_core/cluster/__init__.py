"""What only servers need.

Addresses, the balance of connections, the control protocol, the limits of a drain, and
what both ends of a link hold each other to.
"""
