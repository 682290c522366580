"""What may happen to a pool, in any order, and what holds after each step.

``test_supervision.py`` makes one model of all of it: the rules of ``callers``, ``sessions``,
``workers``, ``departures`` and ``closing``, and the invariants of ``safety`` and ``progress``.
``base`` has the pool that they are about, and what the rules draw from.
"""
