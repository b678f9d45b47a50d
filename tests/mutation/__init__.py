"""Mutation tests of the code that prevents lost and duplicate runs.

See ``python -m tests.mutation --help``.
"""
