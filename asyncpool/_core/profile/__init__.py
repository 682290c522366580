"""Where the time of workers goes: samples of their stacks, counted, sent, merged and drawn.

The worker and the pool both count here, and neither the clock nor a thread is known here.
"""
