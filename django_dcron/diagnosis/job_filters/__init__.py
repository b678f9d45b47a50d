"""Filter jobs, for the admin, the REST API and the command line."""
