"""What a pool knows, and what it is.

Its registry of jobs, its status, who is let in, how jobs fail.
"""
