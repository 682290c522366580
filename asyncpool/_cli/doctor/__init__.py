"""``asyncpool doctor``: what this machine can do, and cannot."""
