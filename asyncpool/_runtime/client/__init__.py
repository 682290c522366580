"""The client: the jobs of a program whose workers belong to an agent."""
