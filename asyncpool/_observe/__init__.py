"""What reads the events and figures of a pool or a cluster, which know none of it."""
