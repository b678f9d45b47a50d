"""Reads pickles and YAML from sources that nobody vouches for, in a child process with limits of time, memory and size.

Invariants:

- This process never unpickles. It gets plain JSON from the child, of a bounded size, and makes plain values of it.
- Each text is read by a process of its own, forked for it. Whatever a text does to its reader, the next one is not affected.
- A text that exceeds a limit raises ``Unreadable``, and so does one that ends its process. The limits grow with the length of the
  text, so that they are tight for short texts that describe much.
- A pickle is data: of the classes that it names, only those of ``datetime`` and zones are made. Those of APScheduler become
  ``Record``, and anything else is refused.
"""

from django_dcron.untrusted.plain import Other, Record
from django_dcron.untrusted.reader import Reader, Unreadable

__all__ = ["Other", "Reader", "Record", "Unreadable"]
