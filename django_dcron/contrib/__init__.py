"""Optional parts: a REST API, importers, check-ins, alerts and a converter of iCalendar files."""
