"""What only the master of a cluster does.

Listen, hand out connections and messages, obey signals and commands.
"""
