"""Shared parts of the change lists: bounds for millions of rows, filters, confirmation, export."""
