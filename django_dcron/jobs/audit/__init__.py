"""The audit log: who changed, paused, ran or cancelled what, and from what to what."""
