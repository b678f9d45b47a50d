"""Helpers without knowledge of jobs and runs. They import nothing else from the package."""
