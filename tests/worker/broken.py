"""A module that cannot be imported."""


def load() -> None:
    raise LookupError("no configuration")


load()
