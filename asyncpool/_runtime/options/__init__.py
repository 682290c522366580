"""The options of pools, clusters, executors and jobs.

Each option has one row in a table of checks, and one field in a frozen record.
"""
