"""Mutation testing of the code that decides whether a run is lost or doubled: ``python -m tests.mutation --help``."""
