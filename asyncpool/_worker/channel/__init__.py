"""The worker's ends of the channels and of the shared memory."""
