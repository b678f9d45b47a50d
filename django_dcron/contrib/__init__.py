"""Optional parts: a REST API, importers from other schedulers, check-ins and alerts."""
