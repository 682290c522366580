"""What reads the events and figures of a pool; the pool knows none of it."""
