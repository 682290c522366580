"""What a pool decides: queue, slots, restarts, exits and endings, without clock and without I/O."""
