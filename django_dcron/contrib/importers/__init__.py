"""Import the jobs of another scheduler, a crontab or an export.

A module per source reads it and writes nothing: ``read(...) -> SourceContents``. ``comparison``
compares the contents with the existing jobs, and ``writing`` applies the differences.

Invariants:

- An imported job has the same due times as before. A schedule is translated exactly, or refused
  with a reason.
- A warning names everything else that has no equivalent. Nothing is dropped silently.
- Reading the same source again yields the same jobs with the same names.
- Each job is written separately, fully validated, against the version that was compared. A job that
  can't be written stops no other.
- Nothing in the source is changed or executed.
"""
