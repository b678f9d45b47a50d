"""Why a job did or did not run at a time, in words, from the rows."""
