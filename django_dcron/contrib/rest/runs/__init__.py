"""Runs: list, read, cancel and rerun them."""
