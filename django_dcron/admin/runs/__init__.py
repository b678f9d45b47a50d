"""The admin of runs and their attempts: what became of each occurrence."""
