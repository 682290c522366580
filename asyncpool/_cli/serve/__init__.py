"""``asyncpool serve``, and the commands for a server that runs."""
