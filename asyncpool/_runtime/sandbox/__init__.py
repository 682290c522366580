"""What the service does for sandboxed workers: it tells what the machine can do, and what it gives."""
