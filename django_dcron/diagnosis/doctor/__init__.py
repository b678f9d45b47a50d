"""The doctor: finds problems of nodes, jobs, runs and attempts, and recommends actions."""
