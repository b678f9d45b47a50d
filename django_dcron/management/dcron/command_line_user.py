"""The user who runs a command."""

from __future__ import annotations

import getpass
import socket
from contextlib import AbstractContextManager

from django_dcron.jobs.audit.actor import Actor, acting
from django_dcron.models import Via


def user_name() -> str:
    """Return the name of the user who runs the command.

    The user name that the environment gives (LOGNAME, USER), or that of the operating system.
    """
    try:
        return getpass.getuser()[:100]
    except (OSError, KeyError):  # A container may run as a user id without a name.
        return "someone"


def acting_on_command_line() -> AbstractContextManager[None]:
    """Attribute the changes of the block to the user of the command line, in the audit log."""
    return acting(lambda: Actor(user_name(), socket.gethostname(), Via.CLI))
