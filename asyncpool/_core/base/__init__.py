"""What every other room uses.

Records, deadlines, the checks of arguments, run times, and texts.
"""
