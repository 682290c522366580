"""What clients and agents have in common, see ``_core/remote``; and the carriers of their batches."""
