"""Maps: how many items make a chunk, and what a worker writes down for each item."""
