"""What a job may ask of the worker that it runs in."""
