"""What a trace of a pool or a cluster consists of: which event becomes which lines, and on which track.

Nothing here opens a file, and they work the same without it.
"""
