"""What asyncpool and its peers do under load and under faults."""
