"""What ends a job before its time: revoked, interrupted, fenced; and where it is at that moment."""
