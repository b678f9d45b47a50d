"""Interfaces for monitoring systems: health endpoints, metrics and structured logs."""
