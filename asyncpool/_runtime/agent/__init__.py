"""The agent: it lets clients in other processes use a pool."""
