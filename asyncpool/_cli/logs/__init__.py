"""The log of a command that serves for long: what it prints, in which form, and to whom."""
