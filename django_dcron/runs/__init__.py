"""The life of a run: creation, start, transitions, completion, cancellation, chains, retention."""
