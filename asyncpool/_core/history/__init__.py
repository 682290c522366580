"""What the dashboard and a report show of a program, of what its control socket tells.

Nothing here reads a clock: each line says when it was written.
"""
