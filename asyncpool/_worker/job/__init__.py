"""How a job runs, one at a time, and how it is made to end."""
