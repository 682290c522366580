"""How a job runs, one at a time, and what its worker tells meanwhile."""
