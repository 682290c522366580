"""What only the master of a cluster does.

It listens, hands out connections and messages, and obeys signals and commands.
"""
