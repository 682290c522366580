"""Maps: how many items make a chunk, and what a worker notes of each."""
