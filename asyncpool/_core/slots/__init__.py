"""The states of a slot and of a job that is to end, the size of a pool, and the words for ends."""
