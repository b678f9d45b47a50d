"""The health of the whole system: facts, problems and the verdict, without I/O."""
