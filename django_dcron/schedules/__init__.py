"""Schedules: parse text, calendars and time zones; compute occurrences, descriptions and forecasts.

This package is pure Python and works without Django.
"""
