"""What the dashboard shows of a program, of what its control socket tells.

Nothing here reads a clock: each line says when it was written.
"""
