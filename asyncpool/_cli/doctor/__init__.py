"""``asyncpool doctor``: what this machine offers to pools, and what it lacks."""
