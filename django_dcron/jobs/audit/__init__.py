"""The audit log: who changed which job, calendar or run, when, and from what to what."""
