"""The page of the dashboard: its files, which a browser shows."""
