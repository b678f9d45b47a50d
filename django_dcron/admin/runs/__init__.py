"""The admin of runs and attempts."""
