"""One agent as its client knows it: what it has, what it is asked, and what it answers."""
