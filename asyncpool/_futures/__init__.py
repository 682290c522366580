"""What ``ProcessPoolExecutor`` consists of: a pool in a thread, and the results that it returns."""
