"""A node's own HTTP server, and what it answers: ``runcron --http [HOST:]PORT``."""
