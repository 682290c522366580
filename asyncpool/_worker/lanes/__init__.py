"""How several jobs run at once, each in a lane."""
