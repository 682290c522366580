"""Pools of any configuration under everything that may happen, for as long as one likes.

``python -m tests.soak --seed N --minutes M``.  The seed decides every choice: how the
pools are set up, what is submitted, what is done to them, after which pauses.  A replay
makes the same choices; when processes run, and which worker a kill meets, is the machine's
affair, so a failure that depends on it may need several replays.
"""
