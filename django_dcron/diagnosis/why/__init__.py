"""Explain from the rows why a job did or didn't run at a time."""
