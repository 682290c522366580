"""What a trace of a pool consists of: which event becomes which lines, and on which track.

Nothing here opens a file, and the pool works the same without it.
"""
