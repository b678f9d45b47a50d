"""Exit codes, the same for every subcommand except ``state``.

- 0: success, or the answer is yes.
- 1: the answer is no, or the requested action failed (a finding, a difference, a failed run).
- 2: the request can't be processed: invalid input, an unknown name, no database. Nothing was
  changed.

An unreachable database, an invalid setting and an unknown option end every subcommand with 2.
``management/commands/dcron.py`` and argparse implement that. Messages may quote untrusted text, so
control characters are escaped.
"""

from __future__ import annotations

from django.core.management.base import CommandError

from django_dcron.utils.control_characters import escape_control_characters

NEGATIVE = 1
USAGE_ERROR = 2
HOW_TO_CREATE_A_JOB = "To create a job: the admin, @cron, or control.update_or_create."


def negative_result(message: str) -> CommandError:
    """Return the error to raise if the answer is no."""
    return CommandError(escape_control_characters(message), returncode=NEGATIVE)


def usage_error(message: str) -> CommandError:
    """Return the error to raise if the request can't be processed."""
    return CommandError(escape_control_characters(message), returncode=USAGE_ERROR)
