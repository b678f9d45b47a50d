"""Database tools: clocks, contention, session limits, routing, prepared statements, connections.

This package doesn't depend on the models.
"""
