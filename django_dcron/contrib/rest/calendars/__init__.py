"""Calendars: list, read, create, change and delete them."""
