"""Import the jobs of another scheduler, a crontab or an export.

A module per source reads it: ``read(...) -> SourceContents``. ``comparison`` compares the contents
with the existing jobs, and ``writing`` applies the differences. ``handback`` gives the jobs back.

Invariants:

- An imported job has the same due times as before. A schedule is translated exactly, or refused
  with a reason.
- A warning names everything else that has no equivalent. Nothing is dropped silently.
- Reading the same source again yields the same jobs with the same names.
- Each job is fully validated, and written only if it still has the version that was compared. A job
  that can't be written stops no other.
- An import changes nothing in the source and runs none of its jobs. Handing jobs back changes only
  the times of its last runs.
"""
