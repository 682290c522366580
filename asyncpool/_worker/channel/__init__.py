"""The worker's ends of what it shares with the pool."""
