"""Moving in: the jobs of another scheduler, of a crontab or of an export, as jobs of ours.

A module per source reads what is there, and writes nothing: ``read(...) -> Reading``. ``comparison`` tells how that differs from the
jobs that exist, ``writing`` carries it out.

Invariants:

- What is moved falls due when it did: the schedule is translated exactly, or refused with the reason. Where other things have no
  equivalent, a warning says so; nothing is dropped in silence.
- Reading the same source again finds the same jobs, by the same names.
- Each job is written by itself, fully validated, on the version that was compared. What cannot be written stops no other.
- Nothing of the source is changed, and nothing in it is executed.
"""
