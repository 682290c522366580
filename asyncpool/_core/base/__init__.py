"""What every other room uses.

Records, deadlines, checks of arguments, run times, and texts.
"""
