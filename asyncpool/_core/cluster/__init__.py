"""What only servers need.

Addresses, the balance of connections, the limits of a drain, and the rules that both
ends of a link check.
"""
