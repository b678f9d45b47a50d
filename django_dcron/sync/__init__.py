"""Bringing the jobs declared in code into the database: ``plan`` tells the differences, ``apply`` carries them out.

Invariants:

- Three states are merged: the row, the code, and what the code said last (``Job.declared``). A field follows the code
  only while the row still has what the code said last; what a person changed is kept, until it is what the code says.
- A job that people made is never touched: a declaration of the same name is refused. Delete or rename one of the two.
- What is no longer declared is disabled, never deleted, and comes back by being declared again. If some task modules
  could not be imported, a missing declaration proves nothing, and nothing is disabled.
- Each job is written in its own transaction, on the version that was read. Nodes that sync at the same time redo the
  comparison and find it done. One bad declaration stops no other.
"""

from __future__ import annotations

from django_dcron.sync.changes import Change, ChangeKind
from django_dcron.sync.comparison import DECLARED_DISABLED, NO_LONGER_DECLARED, plan
from django_dcron.sync.writing import apply

__all__ = ["DECLARED_DISABLED", "NO_LONGER_DECLARED", "Change", "ChangeKind", "apply", "plan"]
