"""The parts of the census; ``examples/stdlib_census.py`` puts them together."""
