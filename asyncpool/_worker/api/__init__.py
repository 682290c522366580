"""The functions that a job may call about itself and its worker."""
