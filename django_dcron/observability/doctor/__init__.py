"""The doctor: looks at nodes, jobs, runs and attempts, and says what is wrong and what to do."""
