"""How a worker shuts itself in, after the imports of *preload* and before any job."""
