"""What a pool in another process is asked, and what comes of it: an agent has it, clients use it.

``docs/decisions/scale-out.md`` says who owns what.  The modules know nothing of how batches
travel, and of what a message says beside the numbers of jobs.
"""
