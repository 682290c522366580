"""The page with the figures: its files, which a browser shows, and the report of a run."""
