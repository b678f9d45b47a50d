"""Calendars: listed, read, written, deleted."""
