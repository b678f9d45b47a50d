"""A node's HTTP server and its answers: ``runcron --http [HOST:]PORT``."""
