"""Changes to jobs: saving, pausing, backfill, calendars, chains, sync, exports, audit log."""
