"""Explain why a job ran or didn't run at a given time, from the stored rows."""
