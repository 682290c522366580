"""One worker after another in each slot.

Here are the states of a slot, the starts and ends of its workers, and the number of
slots.  Decisions are returned as commands.
"""
