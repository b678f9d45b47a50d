"""What a job may run: tasks of Celery and of Django, ``@cron`` functions, and the management and shell commands the settings
allow.

Nothing typed into the admin is ever imported or executed unless it is registered here. This package knows no models:
the models ask it whether a target exists.
"""

from django_dcron.targets.base import Invocation, Target, TargetKind
from django_dcron.targets.declaration import Declaration, cron, declarations, declared_for, isolated
from django_dcron.targets.queues import allowed_queues, check_queue, is_reserved
from django_dcron.targets.redaction import MASK, redacted, restored
from django_dcron.targets.registry import available, check_arguments, discovery_problem, get
from django_dcron.targets.shell import ShellFailed

__all__ = [
    "MASK",
    "Declaration",
    "Invocation",
    "ShellFailed",
    "Target",
    "TargetKind",
    "allowed_queues",
    "available",
    "check_arguments",
    "check_queue",
    "cron",
    "declarations",
    "declared_for",
    "discovery_problem",
    "get",
    "is_reserved",
    "isolated",
    "redacted",
    "restored",
]
