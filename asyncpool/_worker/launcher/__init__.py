"""The launcher's process, which forks workers and reaps them."""
