"""What a client and its agents send each other: messages, their order, and what they tell of clocks."""
