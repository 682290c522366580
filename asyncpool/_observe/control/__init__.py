"""What commands and the dashboard see of a pool or a cluster that runs, and what they may do."""
