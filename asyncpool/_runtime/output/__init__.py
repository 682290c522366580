"""What workers print and what their loggers record, passed on to the loggers of the service."""
