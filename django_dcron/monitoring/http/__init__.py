"""A node's HTTP server and its responses: ``runcron --http [HOST:]PORT``."""
