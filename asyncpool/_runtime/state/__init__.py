"""What a pool knows: its open jobs, its status, which jobs it takes, and how jobs fail."""
