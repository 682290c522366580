"""Maps over a pool: where items come from, how they become chunks, what runs the chunks."""
