"""Read untrusted pickles and YAML in a child process with limited time, memory and size.

Invariants:

- This process never unpickles. The child sends JSON of a bounded size, which this process decodes
  to values of built-in types, times and ``Record``.
- The child forks a process for each text, so a text can't affect the reader of the next one.
- A text that exceeds a limit or kills its process raises ``Unreadable``.
- The limits grow with the length of the text, so a short text can't expand to many values.
- A pickle is data. Only classes of ``datetime`` and time zones are instantiated. Classes of
  APScheduler become ``Record``. Anything else is refused.
"""

from django_dcron.utils.untrusted.reader import Reader, Unreadable
from django_dcron.utils.untrusted.value_json import Record, UnsupportedValue

__all__ = ["Reader", "Record", "Unreadable", "UnsupportedValue"]
