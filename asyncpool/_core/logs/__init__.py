"""The messages that asyncpool logs, in the service and in its workers, each with its id."""
