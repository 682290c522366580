"""Mutants of the core: small changes that its tests are to notice.

``python -m tests.mutants`` changes one place of a module at a time and runs the tests of that
module.  A mutant that they let live shows a test that is missing, or code that makes no
difference.
"""
