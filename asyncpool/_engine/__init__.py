"""The service's process: the engine of a pool, its workers as the service sees them, and jobs."""
