"""Exit codes, the same for every subcommand:

- 0: done; the answer is yes, or there is one;
- 1: the answer is no, or what was asked for has failed (a finding, a difference, a failed run);
- 2: it cannot be done or told: bad input, nothing of that name, no database. Nothing was changed.

A database that is away, a setting that makes no sense and an option that does not exist end with 2 whatever the subcommand:
``management/commands/dcron.py`` and argparse see to that. A message may quote anybody: it cannot steer the terminal.
"""

from __future__ import annotations

from django.core.management.base import CommandError

from django_dcron.management.dcron.plain_text import printable

NO = 1
CANNOT = 2


def no(message: str) -> CommandError:
    """To be raised: the answer is no."""
    return CommandError(printable(message), returncode=NO)


def cannot(message: str) -> CommandError:
    """To be raised: it cannot be done or told."""
    return CommandError(printable(message), returncode=CANNOT)
