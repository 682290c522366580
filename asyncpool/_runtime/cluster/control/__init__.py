"""The control socket of a cluster: where it is, who answers there, who asks."""
