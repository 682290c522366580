"""With programs and libraries that are too heavy for ``make test``: run by ``make real``."""
