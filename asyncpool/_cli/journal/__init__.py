"""What is done of a run of ``asyncpool map``, in a database that outlives the run."""
