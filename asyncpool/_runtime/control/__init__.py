"""The control sockets of a user's programs: where they are, who answers, who asks.

Clusters have one, and pools that are asked to.  The files of all Unix sockets are made here.
"""
