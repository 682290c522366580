"""``asyncpool status`` and what else looks at pools and servers that run, or changes them."""
