"""What is measured of a pool while it works: counts, the lag of its loop, the times of its jobs."""
