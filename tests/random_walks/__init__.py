"""Random walks through the model of the supervisor; ``make walks`` takes them.

The model is a state machine of Hypothesis, and pytest has Hypothesis run it.  A walk is a run of
the same machine with other odds: some rules never happen in it and some happen often, and the
first value of a strategy is drawn more often than the others.  So a walk repeats itself, and comes
to states that need several rare events in a row.  Without what Hypothesis keeps in order to make an
example small, there are five times as many in a second.
"""
