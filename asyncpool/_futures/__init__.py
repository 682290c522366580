"""What ``ProcessPoolExecutor`` is made of: a loop in a thread, and the results that it hands out."""
