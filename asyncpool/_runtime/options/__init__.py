"""What the constructors of pools and clusters share, and the options of jobs."""
