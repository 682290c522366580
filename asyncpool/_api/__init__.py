"""What the classes that users call are made of."""
