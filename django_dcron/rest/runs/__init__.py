"""Runs: listed, read, cancelled, run again."""
