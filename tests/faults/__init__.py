"""Planted faults, and which tests find them.

``corpus.toml`` has defects of the history, each of which is put back by a small edit.
``mutants.toml`` names the modules that decide: each small change of them is a fault, too.
"""
